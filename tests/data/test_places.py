"""Where the files lie that tables name."""

from helpers.data.places import Places


def test_of_files_of_one_name_the_one_with_most_words_in_common_is_nearest():
    places = Places(["train/day 1/7.png", "val/day 1/7.png", "val/day 2/7.png"])
    assert places.nearest("marks/val/day 1/7.json", "7") == "val/day 1/7.png"
    assert places.nearest("marks/val/7.json", "7") == ""  # two are as near


def test_of_files_as_near_the_one_in_the_fewest_folders_counts():
    places = Places(["a/7.png", "a/copies/7.png"])
    assert places.nearest("marks/7.xml", "7") == "a/7.png"


def test_a_name_in_other_letters_counts_where_there_is_none_in_the_same():
    places = Places(["a/Cat.PNG", "b/cat.png"])
    assert places.named("t.csv", "cat.png") == "b/cat.png"
    assert places.named("t.csv", "CAT") == ""
    assert places.named("t.csv", "a/cat.png") == "a/Cat.PNG"
    assert places.named("t.csv", "/home/me/b/cat.png") == "b/cat.png"
    assert places.named("t.csv", "c/cat.png") == ""


def test_a_mask_is_meant_only_where_no_image_has_the_name():
    mask = "marks/masks/7.png"
    places = Places(["images/7.jpg", mask, "marks/masks/8.png"], {mask})
    assert places.nearest("marks/xmls/7.xml", "7") == "images/7.jpg"
    assert places.named("marks/a.json", "7.png") == mask
    assert places.nearest("marks/xmls/8.xml", "8") == "marks/masks/8.png"
