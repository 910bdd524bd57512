"""A GPU that is pretended, so that faults of devices show on a machine without one.

Tensors that are made on "cuda" or moved there say so and hold a tensor of the CPU. Each
operator is checked as CUDA would, computed on the CPU, and its result wrapped again:

- tensors of one or more dimensions on two devices raise, as does NumPy on a GPU's tensor;
- fused optimizers refuse states of other strides than their weights;
- products of integers have no kernel.

Nothing is said of memory, speed, rounding, streams, autocast, ``torch.compile`` or
drivers. To C++ the tensors are of PrivateUse1, since autograd would ask CUDA itself for
streams. Hence ``module.to("cuda")`` makes new parameters.

``LIMITS`` may be changed while it pretends: the number of operators after which each
raises as those of a broken GPU do. It also counts how often the host waits for the GPU.
"""

import traceback
from typing import Any

LIMITS = {"operators": 2**62, "waits": 0}
FAULTS: list[str] = []  # of devices that were seen, caught or not
ECC = "CUDA error: uncorrectable ECC error encountered (pretended)"
_INNER = "pretended"  # as C++ knows the device


def install() -> None:
    """Pretend in this process: see the module's docstring."""
    import torch
    import torch.utils.backend_registration as registration
    from torch.utils._python_dispatch import TorchDispatchMode

    registration._setup_privateuseone_for_python_backend(_INNER)
    torch._C._ensureCUDADeviceGuardSet()  # a guard that does nothing
    torch._C._set_only_lift_cpu_tensors(True)  # made on the CPU, then moved
    aten = torch.ops.aten

    class Pretended(torch.Tensor):
        """A tensor that says "cuda" and holds one of the CPU."""

        @staticmethod
        def __new__(cls, held: Any, device: Any) -> Any:
            with torch.inference_mode(held.is_inference()):
                made = torch.Tensor._make_wrapper_subclass(
                    cls,
                    held.size(),
                    strides=held.stride(),
                    storage_offset=held.storage_offset(),
                    dtype=held.dtype,
                    layout=held.layout,
                    device=torch.device(_INNER, device.index),
                )
            made.held = held
            return made

        __torch_function__ = torch._C._disabled_torch_function_impl
        is_cuda = property(lambda self: True)

        @property
        def device(self) -> Any:
            """The device as Python code sees it."""
            return torch.device("cuda", torch.Tensor.device.__get__(self).index)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return compute(func, args, kwargs or {})

        def numpy(self, *args: Any, **kwargs: Any) -> Any:
            """Refuse, as for a tensor of a GPU."""
            note(f"numpy() of a tensor on {self.device}")
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        __array__ = numpy

        def tolist(self) -> list:
            """Numbers, as of a tensor of a GPU."""
            return self.cpu().tolist()

        def __deepcopy__(self, memo: dict) -> Any:
            made = self.detach().clone()
            if isinstance(self, torch.nn.Parameter):
                made = torch.nn.Parameter(made, self.requires_grad)
            return memo.setdefault(id(self), made)

        def __reduce_ex__(self, protocol: Any) -> Any:
            note("a tensor of a GPU is pickled")
            raise RuntimeError("a tensor of a GPU is pickled (pretended)")

    indexing = {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
        aten._unsafe_index.Tensor,
    }
    copying = {aten.copy_.default, aten._to_copy.default}
    # Operators for which a tensor without dimensions must be on the device too.
    strict = {
        aten.cat.default,
        aten.stack.default,
        aten.gather.default,
        aten.scatter_add_.default,
        aten.searchsorted.Tensor,
    }
    composed: dict[Any, bool] = {}  # whether an operator is made of others
    products = {"mm", "bmm", "addmm", "addmv", "mv", "dot", "baddbmm"}
    waiting = {
        aten._local_scalar_dense.default,
        aten.nonzero.default,
        aten.equal.default,
        aten.masked_select.default,
        aten.bincount.default,
        aten._unique2.default,
        aten.repeat_interleave.Tensor,
    }

    def compute(func: Any, args: Any, kwargs: Any) -> Any:
        """Check an operator, compute it on the CPU, and wrap what it gives."""
        leaves: list[Any] = []
        _changed((args, kwargs), torch.Tensor, leaves.append)
        ours = [x for x in leaves if isinstance(x, Pretended)]
        target = kwargs.get("device")
        target = None if target is None else torch.device(target)
        if target is not None and target.type in (_INNER, "cuda"):
            target = torch.device("cuda", target.index or 0)
        if not ours and (target is None or target.type != "cuda"):
            return func(*args, **kwargs)
        if func not in composed:
            key = "CompositeImplicitAutograd"
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
            composed[func] = has_kernel(func.name(), key)
        if composed[func]:
            with mode:  # as inference mode hands them on
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        check(func, args, leaves, ours, target)
        wrappers = {id(leaf.held): leaf for leaf in ours}
        to_device = kwargs.get("device") is not None
        target = target or ours[0].device
        args, kwargs = _changed((args, kwargs), Pretended, lambda x: x.held)
        kwargs = {name: x for name, x in kwargs.items() if name != "pin_memory"}
        if to_device:
            kwargs["device"] = torch.device("cpu")
        result = func(*args, **kwargs)
        copied = func is aten.copy_.default
        if target.type != "cuda" or (copied and not isinstance(leaves[0], Pretended)):
            return result

        def wrapped(x: Any) -> Any:
            return wrappers[id(x)] if id(x) in wrappers else Pretended(x, target)

        return _changed(result, torch.Tensor, wrapped)

    def check(func: Any, args: Any, leaves: list, ours: list, target: Any) -> None:
        """Raise what CUDA would raise."""
        name = func._schema.name.removeprefix("aten::")
        LIMITS["operators"] -= 1
        if LIMITS["operators"] < 0:
            raise torch.AcceleratorError(ECC)
        to_host = func is aten._to_copy.default and str(target) == "cpu"
        has_host_index = func in indexing and any(
            isinstance(x, torch.Tensor)
            and (not isinstance(x, Pretended) or x.dtype in (torch.bool, torch.uint8))
            for x in args[1]
        )
        if ours and (func in waiting or to_host or has_host_index):
            LIMITS["waits"] += 1
        if func not in copying:
            check_devices(func, name, args, leaves)
        if name.startswith("_fused_"):
            check_strides(name, args)
        if name in products and not leaves[0].dtype.is_floating_point:
            note(f"{name} of {leaves[0].dtype}")
            raise NotImplementedError(f'"{name}_cuda" not implemented (pretended)')

    def check_devices(func: Any, name: str, args: Any, leaves: list) -> None:
        """All tensors with dimensions on one device; a GPU's may be indexed by a CPU's."""
        if func in indexing and isinstance(args[0], Pretended):
            leaves = [x for x in (args[0], *args[2:3]) if isinstance(x, torch.Tensor)]
        places = {
            str(leaf.device)
            for leaf in leaves
            if leaf.dim() or isinstance(leaf, Pretended) or func in strict
        }
        if len(places) > 1:
            note(f"{name}: {' and '.join(sorted(places))}")
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {' and '.join(sorted(places))}! (pretended, in {name})"
            )

    def check_strides(name: str, args: Any) -> None:
        """Kernels of optimizers walk weights, gradients and states by their memory."""
        lists = [x for x in args[:4] if isinstance(x, list | tuple)]
        lists = [part for part in lists if len(part) == len(args[0])]
        for tensors in zip(*lists, strict=True):
            if len({tensor.stride() for tensor in tensors}) > 1:
                note(f"{name}: a gradient or a state of other strides than the weight")
                raise RuntimeError(
                    "params, grads, exp_avgs, and exp_avg_sqs must have same dtype, "
                    "device, and layout (pretended)"
                )

    class Mode(TorchDispatchMode):
        """Sees operators without a wrapper among their inputs, such as ``zeros``."""

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # which would be loaded for it

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return compute(func, args, kwargs or {})

    _answer_as_cuda(torch)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    mode = Mode()
    mode.__enter__()


def _changed(values: Any, kind: type, change: Any) -> Any:
    """Nested lists, tuples and dicts with each value of a kind changed."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(kind, change, values)


def note(fault: str) -> None:
    """Note a fault of devices, with the line of the project that did it."""
    lines = traceback.extract_stack()
    ours = [line for line in lines if "/helpers/" in line.filename]
    where = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "outside of helpers"
    FAULTS.append(f"{where}: {fault}")


def _answer_as_cuda(torch: Any) -> None:
    """Let ``torch.cuda`` answer as where there is a GPU."""
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "Pretended GPU",
        "is_current_stream_capturing": lambda: False,
    }
    for name in ("_lazy_init", "synchronize", "manual_seed_all"):
        # Each is a function of its own, as torch._dynamo wants them.
        answers[name] = lambda *args, **kwargs: None
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.accelerator.synchronize = lambda *args, **kwargs: None
    torch.compile = lambda module=None, **options: module or (lambda other: other)
