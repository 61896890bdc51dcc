"""Recipe files: how they are found, merged and overridden, and what a user is told about a mistake."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from zofc.errors import RecipeError
from zofc.methods import SECTIONS, complete_recipe
from zofc.methods.l2p import L2pSettings
from zofc.methods.ridge import RidgeSettings
from zofc.recipe import (
    METHOD_SECTIONS,
    Group,
    Recipe,
    ViewSettings,
    change_recipe,
    dump_recipe,
    files,
    load_recipe,
    recipe_names,
    recipe_presets,
)
from zofc.recipe.parse import read_text
from zofc.recipe.rates import RATES_FILE
from zofc.recipe.settings import list_settings
from zofc.runfolder.identity import recipe_digest
from zofc.runfolder.nested import flatten

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the current folder and gives the path a user would type."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


def complaint(name: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, overrides)
    return str(caught.value)


# Finding


def test_a_shipped_recipe_is_known_by_its_name() -> None:
    recipe = load_recipe("zofc/cifar100-inc5")
    assert (recipe.name, recipe.data.source, recipe.data.increment) == ("zofc/cifar100-inc5", "cifar100", 5)


def test_a_file_is_known_by_its_path_and_called_by_its_stem(write: Write) -> None:
    assert load_recipe(write("mine/quick.yaml", "seed: 7")).name == "quick"
    assert load_recipe(write("named.yaml", "name: slow and careful")).name == "slow and careful"
    assert load_recipe("named.yaml", ["name=renamed"]).name == "renamed"


def test_an_empty_file_is_the_default_recipe(write: Write) -> None:
    assert load_recipe(write("empty.yaml", "# nothing yet\n")) == Recipe(name="empty")


def test_unknown_names_get_the_nearest_one() -> None:
    assert "no recipe or file 'zofc/cifar10-inc5'; did you mean 'zofc/cifar100-inc5'?" in complaint("zofc/cifar10-inc5")
    assert "the shipped recipe is called 'zofc/base'" in complaint("zofc/base.yaml")
    assert "`zofc list recipes`" in complaint("§§§")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("coda-fo/bsae", "coda-fo/base"),
        ("coda-zo/cifar10-inc10", "coda-zo/cifar100-inc10"),
        ("ease-zo/imagenet-r", "ease-zo/imagenet-r-inc5"),
        ("inflora/base", "inflora-zo/base"),
        ("lae_fo/base", "lae-fo/base"),
    ],
)
def test_a_misspelled_recipe_is_taken_for_one_of_the_same_method(typed: str, meant: str) -> None:
    assert complaint(typed) == f"no recipe or file '{typed}'; did you mean '{meant}'?"


def test_building_blocks_are_not_listed_and_not_run() -> None:
    assert not [name for name in recipe_names() if "_" in name]
    assert "building block" in complaint("_data/cifar100-inc5")


def test_a_family_is_extended_but_not_run(write: Write) -> None:
    path = write("mine.yaml", "extends: [_own, zofc]\ndata: {increment: 3}")
    assert load_recipe(path).optimize == {
        name: group.model_copy(update={"epochs": 10}) for name, group in load_recipe("zofc/base").optimize.items()
    }
    assert complaint("zofc").startswith("'zofc' is a family of recipes: zofc/base, zofc/cifar100-inc10")


def test_a_mistake_in_a_shipped_row_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "title: a family\nrows:\n  small:\n    extends: _own\n    peft: {rnak: 3}\n"
    monkeypatch.setattr(files, "file_text", lambda content, label: text)
    monkeypatch.setattr(files, "row_names", lambda table: ("small",))
    monkeypatch.setattr(files, "read_table", files.read_table.__wrapped__)
    monkeypatch.setattr(files, "shipped_tables", lambda: {"made": Path("made.yaml")})
    first, second = complaint("made/small").splitlines()
    assert first.startswith("made.yaml:4: rows.small.extends: no recipe or file '_own'")
    assert second == "made.yaml:5: rows.small.peft.rnak: unknown key; did you mean 'rank'?"


# Merging


def test_later_files_win_and_mappings_merge_key_by_key(write: Write) -> None:
    write("a.yaml", "seed: 1\nname: a\noptimize: {peft: {lr: 0.1, epochs: 3}}\npeft: {blocks: [0, 1, 2]}")
    write("b.yaml", "seed: 2\noptimize: {peft: {lr: 0.2}, head: {epochs: 4}}\npeft: {blocks: [7]}")
    recipe = load_recipe(write("c.yaml", "extends: [a.yaml, b.yaml]\noptimize: {head: {lr: 0.3}}"))
    assert recipe.seed == 2
    assert recipe.optimize["peft"] == Group(lr=0.2, epochs=3)
    assert recipe.optimize["head"] == Group(lr=0.3, epochs=4)
    assert recipe.peft.blocks == (7,), "lists are replaced, not merged"
    assert recipe.name == "c", "a name is not inherited"


def test_extends_goes_depth_first(write: Write) -> None:
    write("root.yaml", "seed: 1\ntitle: root")
    write("left.yaml", "extends: root.yaml\nseed: 2\ntitle: left")
    write("right.yaml", "extends: root.yaml\nseed: 3")
    recipe = load_recipe(write("tip.yaml", "extends: [left.yaml, right.yaml]"))
    assert (recipe.seed, recipe.title) == (3, "root"), "right brings its own ancestors along"


def test_relative_paths_start_at_the_file_that_names_them(write: Write) -> None:
    write("parts/base.yaml", "seed: 5")
    write("rows/middle.yaml", "extends: ../parts/base.yaml")
    assert load_recipe(write("tip.yaml", "extends: [zofc/base, rows/middle.yaml]")).seed == 5


def test_equal_recipes_list_their_groups_in_the_same_order(write: Write) -> None:
    one = load_recipe(write("one.yaml", "optimize: {peft: {}, head: {}}"))
    assert list(one.optimize) == ["head", "peft"]


# Scalars and types


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", ".001", "0.001", "+1e-3"])
def test_numbers_with_an_exponent_are_numbers(write: Write, text: str) -> None:
    path = write("a.yaml", f"optimize: {{peft: {{lr: {text}}}}}")
    assert load_recipe(path).optimize["peft"].lr == 1e-3
    assert load_recipe("zofc/base", [f"optimize.peft.lr={text}"]).optimize["peft"].lr == 1e-3


@pytest.mark.parametrize("text", ["folder:my_images", "folder:a b: c #1", "yes", "*x", "!tag", "2024-05-01", "1:30"])
def test_overrides_that_are_not_numbers_stay_as_typed(text: str) -> None:
    assert load_recipe("zofc/base", [f"data.source={text}"]).data.source == text


def test_quotes_and_brackets_on_the_command_line_are_yaml() -> None:
    recipe = load_recipe("zofc/base", ["title='5'", "peft.blocks=[0, 5, 11]", "optimize.peft={lr: 1e-2, clip: null}"])
    assert (recipe.title, recipe.peft.blocks) == ("5", (0, 5, 11))
    assert (recipe.optimize["peft"].lr, recipe.optimize["peft"].clip) == (0.01, None)


def test_leading_zeros_do_not_mean_octal() -> None:
    assert load_recipe("zofc/base", ["seed=010"]).seed == 10


def test_integers_serve_as_floats_and_lists_as_tuples(write: Write) -> None:
    recipe = load_recipe(write("a.yaml", "views: {scale: [0.5, 1]}\noptimize: {peft: {clip: 2}}"))
    assert recipe.views == ViewSettings(scale=(0.5, 1.0))
    assert isinstance(recipe.optimize["peft"].clip, float)


def test_a_recipe_is_a_value_and_later_overrides_win() -> None:
    assert load_recipe("zofc/base", ["seed=1", "seed=2"]) == load_recipe("zofc/base", ["seed=2"])


# What a user is told


WRONG = [
    ("optimize.peft.querys=3", "optimize.peft.querys: unknown key; did you mean 'queries'?"),
    ("optimise.peft.queries=3", "optimise: unknown key; did you mean 'optimize'?"),
    ("paper.tabel=main", "paper.tabel: unknown key; did you mean 'table'?"),
    ("optimize.peft.queries=0", "optimize.peft.queries: expected more than 0, got 0"),
    ("optimize.peft.epsilon=0", "optimize.peft.epsilon: expected more than 0.0, got 0"),
    ("optimize.peft.epochs=-1", "optimize.peft.epochs: expected more than 0, got -1"),
    ("data.increment=0", "data.increment: expected more than 0, got 0"),
    ("optimize.head.lr=-0.1", "optimize.head.lr: expected 0.0 or more, got -0.1"),
    ("optimize.head.momentum=1", "optimize.head.momentum: expected less than 1.0, got 1"),
    ("optimize.head.lr=1e999", "optimize.head.lr: expected a finite number, got inf"),
    ("optimize.head.min_lr=0.5", "optimize.head.min_lr: expected at most the group's lr, 0.01"),
    (
        "optimize.head.schedule=cosin",
        "optimize.head.schedule: expected 'constant', 'cosine' or 'cosine99', got 'cosin'",
    ),
    ("optimize.head.clip=tight", "optimize.head.clip: expected a number, got 'tight'"),
    ("data.increment='4'", "data.increment: expected an integer, got '4'"),
    ("data.increment=4.0", "data.increment: expected an integer, got 4.0"),
    ("data.increment=true", "data.increment: expected an integer, got true"),
    ("data.skip_broken=yes", "data.skip_broken: expected true or false, got 'yes'"),
    ("data.skip_broken=1", "data.skip_broken: expected true or false, got 1"),
    ("title=5", "title: expected text, got 5; in quotes it would be text"),
    ("training.memory=20", "training.memory: expected a size such as 400MB, or auto, got 20"),
    ("training.memory=true", "training.memory: expected a size such as 400MB, or auto, got true"),
    (
        "training.loggers=tensorboard",
        "training.loggers: expected a list, got 'tensorboard'; in brackets it would be one: [tensorboard]",
    ),
    ("seed=-1", "seed: expected 0 or more, got -1"),
    ("seed=", "seed: expected an integer, got null"),
    ("seed.a=1", "seed: expected an integer, got the keys a"),
    ("peft.blocks=5", "peft.blocks: expected text or a list, got 5"),
    ("peft.blocks=[0, x]", "peft.blocks[1]: expected an integer, got 'x'"),
    ("views.scale=[1]", "views.scale: expected more entries, got [1]"),
    ("views.scale=[0.1, 0.5, 1]", "views.scale: expected at most 2 entries, got [0.1, 0.5, 1]"),
    ("views.scale=[0.9, 0.1]", "views.scale: expected 0 < low <= high, got [0.9, 0.1]"),
    ("views.scale=[0.5, 2]", "views.scale: expected at most 1"),
    ("views=bright", "views: expected keys with values, got 'bright'"),
    ("optimize.peft=fast", "optimize.peft: expected keys with values, got 'fast'"),
    ("optimize=fast", "optimize: expected keys with values, got 'fast'"),
    ("paper={table: main}", "paper.row: missing; it has no default"),
    ("peft.blocks=[0, 1", "peft.blocks: not valid YAML: expected ',' or ']'"),
    ("peft={rank: 1, rank: 2}", "peft.rank: given twice"),
    ("preset=contrlled", "preset: unknown preset 'contrlled'; did you mean 'controlled'?"),
    ("preset=released", "preset: 'zofc/base' has no preset 'released', only: paper, controlled, fast"),
    ("extends=zofc/base", "extends: belongs in a file"),
    ("seed", "'seed' is not of the form key=value"),
    ("=3", "'=3' is not of the form key=value"),
    ("data..increment=3", "'data..increment=3' is not of the form key=value"),
    ("title=\udcff", "title: '\\udcff' is not valid Unicode text"),
    ("seed=" + "9" * 5000, "seed: Exceeds the limit"),
]


@pytest.mark.parametrize(("override", "message"), WRONG, ids=[override[:40] for override, _ in WRONG])
def test_a_bad_override_is_explained(override: str, message: str) -> None:
    lines = complaint("zofc/base", override).splitlines()
    assert any(line.startswith(f"command line: {message}") for line in lines), lines


def test_a_mistake_in_a_file_is_told_with_file_line_key_and_remedy(write: Write) -> None:
    path = write("mine.yaml", "extends: zofc/base\noptimize:\n  peft:\n    querys: 8\n")
    assert complaint(path) == "mine.yaml:4: optimize.peft.querys: unknown key; did you mean 'queries'?"


def test_the_message_names_the_file_that_wrote_the_key(write: Write) -> None:
    write("base.yaml", "seed: 1\n\ndata:\n  increment: 0\n")
    path = write("mine.yaml", "extends: base.yaml\ndata:\n  per_class: 0\n")
    first, second = complaint(path).splitlines()
    assert first == "base.yaml:4: data.increment: expected more than 0, got 0"
    assert second == "mine.yaml:3: data.per_class: expected more than 0, got 0"
    assert complaint(path, "data.increment=3") == second, "an override that mends a key silences its complaint"
    assert complaint(path, "data.per_class=3", "data.increment=-1").startswith("command line: data.increment")


def test_all_problems_are_told_at_once(write: Write) -> None:
    path = write("mine.yaml", "extends: nowhere\nseed: x\nseed: 2\nfoo: 1\npreset: papr\n")
    lines = complaint(path, "data.increment=0", "nonsense").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["command line"] * 2 + [f"mine.yaml:{n}" for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\noptimize: [1, 2\n", "bad.yaml:3: not valid YAML: "),
        ("seed: 1\n\tdata: 3\n", "bad.yaml:2: not valid YAML: "),
        ("seed: \x07\n", "bad.yaml: not valid YAML: "),
        ("seed: 1\n---\nseed: 2\n", "bad.yaml:2: not valid YAML: but found another document"),
        ("- 1\n- 2\n", "bad.yaml: expected keys with values, such as `seed: 1993`, got [1, 2]"),
        (
            "seed: 1\ndata:\n  increment: 5\n  increment: 6\n",
            "bad.yaml:4: data.increment: given twice, first on line 3",
        ),
        (
            "title: !!python/name:os.system x\n",
            "bad.yaml:1: title: the tag 'python/name:os.system' has no meaning",
        ),
        ("data: !!set {a}\n", "bad.yaml:1: data: the tag 'set' has no meaning"),
        ("peft: &a {blocks: [*a]}\n", "bad.yaml:1: peft.blocks[0]: an alias to a value that contains it"),
        ("? [a]\n: 1\n", "bad.yaml:1: a key must be a plain word"),
        ("extends: 3\n", "bad.yaml:1: extends: expected a name or a path, got 3"),
        (
            "extends: zofc/bse\n",
            "bad.yaml:1: extends: no recipe or file 'zofc/bse'; did you mean 'zofc/base'?",
        ),
        ("presets: fast\n", "bad.yaml:1: presets: expected names of presets with overlays, got 'fast'"),
        (
            "presets:\n  quick: {}\n",
            "bad.yaml:2: presets.quick: unknown preset; known: controlled, fast, paper, released",
        ),
        ("presets:\n  released: 3\n", "bad.yaml:2: presets.released: expected keys with values, got 3"),
        (
            "presets: {paper: {extends: zofc/base}}",
            "bad.yaml:1: presets.paper.extends: belongs at the top level",
        ),
        ("resolved: quick\n", "bad.yaml:1: resolved: expected one of paper, controlled, released, fast, got 'quick'"),
        ("preset: 3\n", "bad.yaml:1: preset: unknown preset 3"),
    ],
)
def test_a_bad_file_is_explained(write: Write, text: str, message: str) -> None:
    assert complaint(write("bad.yaml", text)).startswith(message)


def test_yaml_that_nests_without_end_is_refused(write: Write) -> None:
    assert "nested too deeply" in complaint(write("deep.yaml", "a: " + "[" * 1000))


def test_a_file_must_be_utf8_text(write: Write) -> None:
    path = Path(write("latin.yaml", ""))
    path.write_bytes("title: é".encode("latin-1"))
    assert complaint(str(path)).startswith("latin.yaml: not UTF-8 text")
    path.write_bytes(b"\xef\xbb\xbfseed: 4")
    assert load_recipe(str(path)).seed == 4, "a byte order mark does no harm"


def test_a_circle_of_extends_is_shown(write: Write) -> None:
    write("a.yaml", "seed: 1\nextends: sub/b.yaml")
    write("sub/b.yaml", "extends: ../c.yaml")
    write("c.yaml", "extends: a.yaml")
    circle = "a.yaml -> sub/b.yaml -> sub/../c.yaml -> sub/../a.yaml"
    assert complaint("a.yaml") == f"sub/../c.yaml:1: extends: goes in a circle: {circle}"
    assert "goes in a circle: self.yaml -> self.yaml" in complaint(write("self.yaml", "extends: self.yaml"))


def test_values_that_are_aliased_are_read_where_they_stand(write: Write) -> None:
    path = write("a.yaml", "optimize:\n  peft: &same {lr: 0.5}\n  head: *same\n")
    assert load_recipe(path).optimize["head"].lr == 0.5


# Settings of methods


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l2p: {pol: 3}", "mine.yaml:2: l2p.pol: unknown key; did you mean 'pool'?"),
        ("lae:\n  decay: 1", "mine.yaml:3: lae.decay: expected less than 1.0, got 1"),
        ("coda: {blocks: [0, x]}", "mine.yaml:2: coda.blocks[1]: expected an integer, got 'x'"),
        ("coda: {length: 3}", "mine.yaml:2: coda.length: expected a multiple of 2, got 3"),
        (
            "presets: {paper: {ridge: {budget: 0}}}",
            "mine.yaml:2: presets.paper.ridge.budget: expected more than 0, got 0",
        ),
    ],
)
def test_a_mistake_in_a_methods_settings_is_told_when_the_recipe_is_resolved(
    write: Write, text: str, message: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        complete_recipe(load_recipe(write("mine.yaml", f"extends: zofc/base\n{text}\n")))
    assert str(caught.value).startswith(message)


def test_an_override_of_a_methods_settings_is_told_to_be_one() -> None:
    recipe = change_recipe(load_recipe("l2p-fo/base", ["l2p.top=3"]), ["l2p.pool=0", "coda.pol=3"])
    assert recipe.sections["l2p"]["top"] == 3
    with pytest.raises(RecipeError) as caught:
        complete_recipe(recipe)
    assert str(caught.value).splitlines() == [
        "command line: l2p.pool: expected more than 0, got 0",
        "command line: coda.pol: unknown key; did you mean 'pool'?",
    ]


def test_a_section_belongs_to_the_method_of_the_recipe(write: Write) -> None:
    text = "method: {name: my-method}\nmy-method: {depth: 3}\n"
    assert load_recipe(write("mine.yaml", text)).sections == {"my-method": {"depth": 3}}
    message = "mine.yaml:2: my-method: unknown key"
    assert complaint("mine.yaml", "method.name=adapter").startswith(message)
    assert complaint("mine.yaml", "l2p=3") == "command line: l2p: expected keys with values, got 3"


def test_a_complete_recipe_spells_out_what_version_0_1_did_and_is_read_back_as_itself(write: Write) -> None:
    recipe = complete_recipe(load_recipe("zofc/base", ["ridge.budget=100", "lae.decay=0"]))
    assert recipe.sections["ridge"]["budget"] == 100 and recipe.sections["lae"]["decay"] == 0
    assert set(recipe.sections) == set(METHOD_SECTIONS)
    again = load_recipe(write("recipe.yaml", dump_recipe(recipe)))
    assert again == recipe == complete_recipe(again)


def test_a_printed_recipe_holds_the_settings_of_its_method(zofc: Callable[..., tuple[int, str]]) -> None:
    code, text = zofc("run", "l2p-fo/base", "l2p.top=2", "--print")
    assert code == 0 and yaml.safe_load(text)["l2p"] == L2pSettings(top=2).model_dump()
    printed = yaml.safe_load(zofc("run", "ridge/base", "--print")[1])["ridge"]
    assert printed == RidgeSettings(strength_from="images").model_dump()
    assert zofc("run", "l2p-fo/base", "l2p.tpo=2", "--print") == (
        2,
        "zofc: command line: l2p.tpo: unknown key; did you mean 'top'?\n",
    )


# Presets


def test_an_overlay_lies_over_the_files_and_under_the_command_line(write: Write) -> None:
    write("base.yaml", "presets: {controlled: {seed: 1, data: {increment: 3}}}")
    path = write("mine.yaml", "extends: base.yaml\nseed: 2\npresets: {controlled: {data: {first: 4}}}")
    assert load_recipe(path).seed == 2
    chosen = load_recipe(path, ["preset=controlled"])
    assert (chosen.preset, chosen.seed) == ("controlled", 1)
    assert (chosen.data.increment, chosen.data.first) == (3, 4)
    assert load_recipe(path, ["seed=9", "preset=controlled"]).seed == 9
    assert recipe_presets(path) == ["paper", "controlled"]


def test_a_file_may_choose_its_preset(write: Write) -> None:
    path = write("mine.yaml", "extends: zofc/cifar100-inc5\npreset: released")
    assert load_recipe(path).optimize["peft"].queries == 1
    assert load_recipe(path, ["preset=paper"]).optimize["peft"].queries == 4


def test_an_empty_overlay_says_that_nothing_differs(write: Write) -> None:
    path = write("mine.yaml", "presets: {released: }")
    assert load_recipe(path, ["preset=released"]).preset == "released"
    assert recipe_presets(write("none.yaml", "presets:\n")) == ["paper"]


def test_a_mistake_in_an_overlay_is_told_before_it_is_chosen(write: Write) -> None:
    path = write("mine.yaml", "presets:\n  released:\n    peft: {rnak: 3}\n")
    assert complaint(path) == "mine.yaml:3: presets.released.peft.rnak: unknown key; did you mean 'rank'?"


@pytest.mark.parametrize("given", ["file", "command line"])
def test_an_overlay_that_is_not_chosen_need_not_fit_the_users_values(write: Write, given: str) -> None:
    """The rate is below where the cosine of `controlled` ends."""
    if given == "file":
        name, changes = write("mine.yaml", "extends: zofc/base\noptimize: {peft: {lr: 0}}\n"), []
    else:
        name, changes = "zofc/base", ["optimize.peft.lr=0"]
    assert load_recipe(name, changes).optimize["peft"].lr == 0
    assert "presets.controlled.optimize.peft.min_lr: expected at most" in complaint(name, *changes, "preset=controlled")


# Searched learning rates

DINO = ["rates=searched", "backbone.name=vit_small_patch14_dinov2.lvd142m"]


def rates(name: str, *overrides: str) -> dict[str, tuple[float, float]]:
    plans = load_recipe(name, overrides).optimize
    return {group: (plan.lr, plan.min_lr) for group, plan in plans.items()}


def test_searched_rates_replace_those_of_the_files_and_schedules_fall_to_the_same_share() -> None:
    table = files.read_table(RATES_FILE)
    found = table.part("vit_small_patch14_dinov2", "zofc").values
    plans = rates("zofc/cifar100-inc10", *DINO)
    assert {group: rate for group, (rate, _) in plans.items()} == found
    assert plans["peft"][1] == 0 and plans["head"][1] == pytest.approx(1e-3 * plans["head"][0])
    classifier = table.part("vit_small_patch14_dinov2", "classifier-fo").values
    assert rates("classifier-fo/base", *DINO)["head"][0] == classifier["head"]
    recipe = load_recipe("zofc/cifar100-inc10", [*DINO, "preset=controlled"])
    assert (recipe.preset, recipe.rates, recipe.optimize["peft"].schedule) == ("controlled", "searched", "cosine")
    assert recipe.optimize["peft"].min_lr == pytest.approx(1e-3 * plans["peft"][0])


def test_a_rate_on_the_command_line_wins_over_a_searched_one() -> None:
    plans = rates("zofc/cifar100-inc10", *DINO, "optimize.peft.lr=1e-9")
    assert plans["peft"] == (1e-9, 0.0) and plans["head"] == rates("zofc/cifar100-inc10", *DINO)["head"]


def test_a_recipe_that_trains_nothing_may_stand_in_a_list_with_searched_rates() -> None:
    assert load_recipe("ridge/base", DINO).optimize == {}


@pytest.mark.parametrize(
    "name", ["vit_small_patch14_dinov2", "backbones/vit_small_patch14_dinov2.safetensors"], ids=["timm", "file"]
)
def test_a_backbone_is_known_by_its_timm_name_with_or_without_tag_and_by_its_weight_file(name: str) -> None:
    assert rates("zofc/base", "rates=searched", f"backbone.name={name}") == rates("zofc/base", *DINO)


def test_a_file_takes_the_rates_of_the_family_it_builds_on(write: Write) -> None:
    path = write("own.yaml", "extends: adapter-fo/base\nrates: searched\nbackbone: {name: vit_small_patch14_dinov2}")
    assert rates(path) == rates("adapter-fo/base", *DINO)
    own = "optimize: {peft: {lr: 0.5}, head: {lr: 0.5}}\nmethod: {name: adapter}\n"
    assert complaint(write("own.yaml", own), *DINO) == (
        "command line: rates: the recipe builds on no shipped family; name the one whose rates it takes, such as "
        "`family: zofc`, in its file"
    )
    path = write("own.yaml", f"{own}family: adapter-fo")
    assert rates(path, *DINO)["peft"][0] == rates("adapter-fo/base", *DINO)["peft"][0]


def test_where_no_rates_were_searched_the_message_names_where_and_how() -> None:
    assert complaint("zofc/base", "rates=searched", "backbone.name=vit_x.y") == (
        "command line: rates: none were searched on the backbone 'vit_x.y', only on: vit_small_patch14_dinov2; search "
        "them with `python -m zofc.evidence rates --out rates.json backbone.name=vit_x.y`, or give them as "
        "optimize.<group>.lr"
    )
    assert "none were searched on the backbone" in complaint("zofc/base", *DINO, "backbone.pretrained=false")
    message = complaint("joint/cifar100-inc5", *DINO)
    assert "on vit_small_patch14_dinov2 for joint, only for: adapter-fo, " in message and "zofc.evidence" in message
    assert complaint("zofc/base", *DINO, "optimize.peft.order=first") == (
        "command line: optimize.peft.order: the rates of zofc were searched with zeroth; give optimize.peft.lr yourself"
    )


def test_one_direction_per_image_has_searched_rates_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_text("vit_x:\n  zofc: {peft: 1, head: 2}\n  zofc-image: {peft: 3, head: 4}", RATES_FILE)
    monkeypatch.setattr("zofc.recipe.rates.read_table", lambda _: table)
    on = "rates=searched", "backbone.name=vit_x.tag"
    assert rates("zofc/base", *on)["peft"][0] == 1
    assert rates("zofc/base", *on, "optimize.peft.per=image")["peft"][0] == 3


def test_a_complete_recipe_keeps_the_rates_it_was_made_with(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("zofc/base", DINO)
    path = write("recipe.yaml", dump_recipe(recipe))
    plans = recipe.optimize.items()
    given = [f"optimize.{name}.{key}={getattr(plan, key)}" for name, plan in plans for key in ("lr", "min_lr")]
    same = load_recipe("zofc/base", [DINO[1], *given])
    assert recipe_digest(same) == recipe_digest(recipe)  # how a rate was chosen does not tell runs apart
    assert complaint(path, "rates=recipe").startswith("command line: rates: the file holds searched rates")
    monkeypatch.setattr("zofc.recipe.rates.read_table", lambda _: read_text("vit_x: {zofc: {peft: 1}}", RATES_FILE))
    assert load_recipe(path) == recipe == change_recipe(recipe, ["seed=1993"])
    assert change_recipe(recipe, ["backbone.name=vit_x"]).optimize["peft"].lr == 1


# Settings


def test_every_setting_has_a_name_of_its_own_and_a_description() -> None:
    found = {setting.key: setting for setting in list_settings(SECTIONS)}
    assert len(found) == len(list(list_settings(SECTIONS))) and all(
        one.description and one.values for one in found.values()
    )
    lr = found["optimize.<group>.lr"]
    assert lr.values == "number ≥ 0, ≤ 1e+38" and lr.default == "0.01"
    assert found["data.first"].values == "integer > 0, ≤ 1000000000 or null" and found["data.first"].default == "null"
    assert found["views.scale"].values == "list of 2 numbers" and found["views.scale"].default == "[0.05, 1]"
    assert found["peft.scale"].values == "number ≥ -1e+38, ≤ 1e+38 or learned"
    assert found["paper.row"].default == "none"


def test_every_key_of_a_written_recipe_is_a_setting() -> None:
    known = {setting.key for setting in list_settings(SECTIONS)}
    recipe = complete_recipe(load_recipe("zofc/cifar100-inc5")).model_dump()
    groups = recipe.pop("optimize")
    keys = set(flatten(recipe)) | {f"optimize.<group>.{key}" for key in groups["peft"]}
    assert keys == known


# Writing


def test_a_written_recipe_reads_back_as_itself_and_keeps_its_preset(write: Write) -> None:
    recipe = load_recipe("zofc/cifar100-inc5", ["preset=controlled", "peft.blocks=[1, 2]", "title='1e-3'"])
    path = write("recipe.yaml", dump_recipe(recipe))
    assert load_recipe(path) == recipe
    assert dump_recipe(load_recipe(path)) == dump_recipe(recipe)
    assert recipe_presets(path) == ["controlled"]
    assert complaint(path, "preset=paper").endswith("'zofc/cifar100-inc5' has no preset 'paper', only: controlled")


CHANGES = (
    "seed=7",
    "peft.blocks=[0, 2]",
    "peft.scale=learned",
    "optimize.peft.lr=1",
    "data.then=[glyphs]",
    "preset=paper",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_recipe_is_changed_as_its_file_would_be(write: Write, change: str) -> None:
    recipe = load_recipe("zofc/cifar100-inc5")
    path = write("recipe.yaml", dump_recipe(recipe))
    assert dump_recipe(change_recipe(recipe, [change])) == dump_recipe(load_recipe(path, [change]))
    assert change_recipe(recipe, []) is recipe


WRONG = (
    "data.per_clas=3",
    "seed=-1",
    "seed=x",
    "optimize.peft=3",
    "preset=released",
    "preset=none",
    "nothing",
    "extends=x",
)


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_change_of_a_recipe_is_told_as_one_of_its_file(write: Write, change: str) -> None:
    recipe = load_recipe("zofc/cifar100-inc5")
    path = write("recipe.yaml", dump_recipe(recipe))
    with pytest.raises(RecipeError) as caught:
        change_recipe(recipe, [change])
    assert str(caught.value) == complaint(path, change) and "command line" in str(caught.value)


def test_a_written_recipe_means_the_same_to_any_yaml_reader() -> None:
    recipe = load_recipe("zofc/base", ["name=yes", "title='010'", "data.source='1e3'"])
    values = yaml.safe_load(dump_recipe(recipe))
    assert (values["name"], values["title"], values["data"]["source"]) == ("yes", "010", "1e3")
    assert values["optimize"]["head"]["min_lr"] == 1e-5


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
positive = st.floats(min_value=0, max_value=1e30, exclude_min=True)
path = text.filter(lambda text: "\0" not in text)
VALUES = {
    "title": text,
    "name": text.filter(lambda name: name.isprintable()),
    "seed": st.integers(0, 2**32 - 1),
    "data.source": path,
    "data.increment": st.integers(1, 10**9),
    "data.skip_broken": st.booleans(),
    "data.then": st.lists(path, max_size=3).map(tuple),
    "peft.blocks": text | st.lists(st.integers(), max_size=3).map(tuple),
    "optimize.peft.lr": positive,
    "optimize.peft.clip": st.none() | positive,
    "optimize.peft.epsilon": positive.filter(lambda value: value <= 1e6),
    "optimize.head.queries": st.integers(1, 10**4),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
@settings(max_examples=60)
def test_overrides_arrive_as_given_and_survive_writing(values: dict[str, object]) -> None:
    overrides = [f"{key}={flow(value)}" for key, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.yaml")
        empty.touch()
        recipe = load_recipe(str(empty), overrides)
        for key, value in values.items():
            assert reached(recipe, key) == value
        empty.write_text(dump_recipe(recipe), encoding="utf-8")
        assert load_recipe(str(empty)) == recipe


def flow(value: object) -> str:
    """A value as it would be typed behind the equals sign."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, str):
        return yaml.dump(value, default_style='"', width=math.inf).strip()
    return "null" if value is None else str(value).lower()


def reached(recipe: Recipe, key: str) -> object:
    found: object = recipe
    for part in key.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return found
