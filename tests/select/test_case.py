import pandas as pd
import pytest

from helpers.select import calibration, case


@pytest.fixture
def study():
    models = pd.DataFrame({"model_id": ["a@stop", "b@stop"], "cell": ["a", "b"], "architecture": "resnet18", "gap": [0.1, 0.2]})
    return calibration.Calibration("s", models, [], 2, {})


def test_models_that_the_calibration_knows_are_not_judged_by_it(study, tmp_path):
    models = pd.DataFrame({"model_id": ["b@stop", "c@stop"], "left_out": ["", ""]})
    with pytest.raises(ValueError, match=r"1 of 2 models of .* calibrate 's' themselves, first b@stop"):
        case.case_of_models(study, tmp_path, models, None, images=2)


def test_a_study_whose_models_are_all_left_out_has_none_to_judge(study, tmp_path):
    with pytest.raises(ValueError, match=r"no model of .* enters an analysis"):
        case.case_of_models(study, tmp_path, pd.DataFrame({"model_id": ["c@stop"], "left_out": ["too few"]}), None, images=2)
