"""Settings are read, overridden, compared, and refused with a reason."""

import itertools
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from raybio.core.config import (
    FIRST_DEFAULT,
    FORMERLY,
    BaseConfig,
    changed_settings,
    difference,
    fingerprint,
    first_path,
    load,
    merge,
    name_digits,
    override,
    override_all,
    present_path,
)
from raybio.core.errors import ConfigError
from raybio.core.fields import fields, setting_hint
from raybio.core.plain_yaml import parse_yaml, read_mapping
from raybio.methods import METHODS
from raybio.training.settings import ScheduleConfig, TrainingConfig


class Optim(BaseConfig):
    peak_lr: float = Field(1e-4, gt=0, le=1, description="highest learning rate")
    fused: bool = True
    betas: tuple[float, float] = (0.9, 0.999)


class Example(BaseConfig):
    seed: int = Field(0, ge=0, description="seed of everything")
    kind: Literal["plain", "fancy"] = "plain"
    margin: float | None = None
    optim: Optim = Optim()


def refused(text: str, tmp_path) -> str:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(Example, path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_config_survives_the_round_trip_through_its_mapping():
    config = Example(seed=3, optim=Optim(peak_lr=0.5))
    assert Example.from_mapping(config.to_mapping()) == config


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError):
        Example().seed = 1  # type: ignore[misc]


def test_override_reads_strings_as_yaml_and_leaves_the_original_alone():
    config = Example()
    assert override(config, "optim.peak_lr", "0.01").optim.peak_lr == 0.01
    assert override(config, "optim.peak_lr", "1e-3").optim.peak_lr == 1e-3
    assert override(config, "optim.betas", "[0.5, 0.6]").optim.betas == (0.5, 0.6)
    assert override(config, "margin", "null").margin is None
    assert override(config, "margin", 0.25).margin == 0.25
    assert config == Example()


@pytest.mark.parametrize(
    ("text", "number"),
    [("010", 10), ("008", 8), ("-0", 0), ("00", 0), ("0x10", 16), ("1_000", 1000), ("+7", 7)],
)
def test_a_number_with_leading_zeros_is_decimal(text: str, number: int, tmp_path: Path) -> None:
    assert override(Example(), "seed", text).seed == number
    file = tmp_path / "a.yaml"
    file.write_text(f"seed: {text}\nmargin: {text}")
    assert load(Example, file).seed == load(Example, file).margin == number


def test_a_number_of_base_60_is_refused(tmp_path: Path) -> None:
    for path, text in (("seed", "1:30"), ("margin", "1:30"), ("margin", "1:30.5")):
        with pytest.raises(ConfigError, match=f"{path}: got '{text}', want a"):
            override(Example(), path, text)
        assert f"{path}: got '{text}', want a" in refused(f"{path}: {text}", tmp_path)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("optim.peek_lr", "optim.peak_lr"),
        ("peak_lr", "optim.peak_lr"),
        ("sed", "seed"),
        ("optm.fused", "optim.fused"),
    ],
)
def test_a_misspelt_path_is_an_error_that_names_the_nearest(path, nearest):
    with pytest.raises(ConfigError, match=f"Did you mean '{nearest}'"):
        override(Example(), path, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim: {~: 1}", "optim: got .*want a mapping of settings"),
        ("optim: {? [a] : 1}", "unhashable key"),
    ],
)
def test_a_key_that_is_no_text_is_refused(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Example.from_mapping(read_mapping(path))


def test_a_second_name_is_suggested_only_if_it_is_about_as_near():
    known = ["optim.peak_lr", "optim.beta1", "optim.beta2"]
    assert setting_hint("optim.peak_rl", known) == " Did you mean 'optim.peak_lr'?"
    assert setting_hint("optim.bet", known).endswith("'optim.beta2' or 'optim.beta1'?")


def test_a_section_is_not_a_setting():
    with pytest.raises(ConfigError, match="'optim' is not a setting"):
        override(Example(), "optim", "{}")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", "-1"),
        ("seed", "1.5"),
        ("seed", "true"),
        ("margin", "false"),
        ("optim.peak_lr", "0"),
        ("optim.peak_lr", ".nan"),
        ("optim.peak_lr", ".inf"),
        ("optim.peak_lr", "abc"),
        ("optim.betas", "[0.5]"),
        ("kind", "fancier"),
        ("seed", "[1, 2"),
        ("seed", "!!python/object/apply:os.getcwd []"),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(path, value):
    with pytest.raises(ConfigError, match=path):
        override(Example(), path, value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("optim.peak_lr", "2", "optim.peak_lr: got 2, want a number > 0, <= 1"),
        ("optim.peak_lr", "abc", "optim.peak_lr: got 'abc', want a number > 0, <= 1"),
        ("optim.peak_lr", "true", "optim.peak_lr: got True, want a number > 0, <= 1"),
        ("optim.peak_lr", ".inf", "optim.peak_lr: got inf, want a finite number > 0, <= 1"),
        ("optim.fused", "perhaps", "optim.fused: got 'perhaps', want true or false"),
        (
            "optim.betas",
            "[0.5, x]",
            "optim.betas: got [0.5, 'x'], want a list of a number, a number",
        ),
        ("optim.betas", "[0.5]", "optim.betas: got [0.5], want a list of a number, a number"),
        ("seed", "1.5", "seed: got 1.5, want a whole number >= 0"),
        ("seed", "[1]", "seed: got [1], want a whole number >= 0"),
        ("kind", "fancier", "kind: got 'fancier', want plain or fancy. Did you mean 'fancy'?"),
        ("margin", "wide", "margin: got 'wide', want a number or null"),
        ("cut", "often", "cut: got 'often', want a whole number or auto"),
        ("texts", "[]", "texts: got [], want a list of title or abstract of length >= 1"),
        ("note", "7", "note: got 7, want text"),
    ],
)
def test_the_message_holds_the_setting_the_value_and_what_was_wanted(path, value, message):
    class Wide(Example):
        cut: int | Literal["auto"] = "auto"
        texts: tuple[Literal["title", "abstract"], ...] = Field(("title",), min_length=1)
        note: str = ""

    with pytest.raises(ConfigError) as caught:
        override(Wide(), path, value)
    assert str(caught.value) == message


def test_missing_settings_and_sections_are_reported_in_the_same_form():
    class Needy(BaseConfig):
        metric: str = Field(min_length=1)
        optim: Optim = Optim()

    with pytest.raises(ConfigError) as caught:
        Needy.from_mapping({"optim": 3})
    assert str(caught.value) == (
        "metric: got nothing, want text of length >= 1; optim: got 3, want a mapping of settings"
    )


def test_a_file_goes_over_the_base_setting_by_setting(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("optim:\n  peak_lr: 0.5\n")
    loaded = load(Example, path, base=Example(seed=7, optim=Optim(fused=False)))
    assert loaded == Example(seed=7, optim=Optim(peak_lr=0.5, fused=False))


def test_an_empty_file_changes_nothing(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing yet\n")
    assert load(Example, path) == Example()


def test_an_unknown_key_in_a_file_is_an_error_that_names_the_nearest(tmp_path):
    assert "Did you mean 'optim.peak_lr'" in refused("optim: {peek_lr: 0.5}", tmp_path)


def test_a_dotted_key_in_a_file_gets_the_advice_to_nest_it(tmp_path):
    assert "nested" in refused("optim.peak_lr: 0.5", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent.yaml: cannot read the file \(No such file"):
        load(Example, tmp_path / "absent.yaml")


def test_a_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes.yaml: .*decode"):
        load(Example, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- 1\n- 2\n", "want a mapping"),
        ("seed: 1\nseed: 2\n", "'seed' is repeated"),
        ("optim: {peak_lr: 0.1, peak_lr: 0.2}\n", "'peak_lr' is repeated"),
        ("seed: !!python/object/apply:os.system ['true']\n", "python/object"),
        ("seed: !!python/name:os.system\n", "python/name"),
        ("optim: &o {peak_lr: 0.1}\nmargin: *o\n", "alias"),
        ("a: {<<: {seed: 1}}\nseed: [", "not valid YAML"),
        ("seed: " + "[" * 5000, "not valid YAML"),
        ("seed: 2026-13-45\n", "not valid YAML"),
        ("1: 2\n", "1"),
        ("optim:\n", "optim"),
    ],
)
def test_a_hostile_or_broken_file_is_refused_with_the_reason(text, reason, tmp_path):
    assert reason in refused(text, tmp_path)


def test_a_syntax_error_is_one_line_with_file_line_and_column(tmp_path):
    message = refused("seed: 1\noptim: {peak_lr: 0.1\nmargin: 2\n", tmp_path)
    assert "\n" not in message
    assert "unicode string" not in message
    assert "given.yaml: not valid YAML: line 3, column 7: " in message


def test_an_alias_bomb_is_refused_before_it_is_expanded():
    # Expanded, it has 9**20 entries.
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in itertools.pairwise("abcdefghijklmnopqrst"):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    with pytest.raises(ConfigError, match="alias"):
        parse_yaml("\n".join(lines))


def test_the_fingerprint_changes_with_any_setting_but_not_with_the_order_of_keys():
    base = Example()
    assert fingerprint(base) == fingerprint(Example.from_mapping({"optim": {}, "seed": 0}))
    changed = [
        override(base, path, value)
        for path, value in [("seed", 1), ("optim.fused", False), ("margin", 0.0)]
    ]
    assert len({fingerprint(config) for config in [base, *changed]}) == 4


def test_a_setting_that_is_added_later_leaves_the_digits_of_names_and_not_the_fingerprint():
    class Newer(Example):
        added: int = 3

    changed = override(Example(), "optim.fused", False)
    newer = Newer.from_mapping(changed.to_mapping())
    assert name_digits(newer) == name_digits(changed) != name_digits(Example())
    assert name_digits(Newer(added=4)) != name_digits(Newer())
    assert fingerprint(newer) != fingerprint(changed)


def test_a_setting_with_another_default_than_at_first_leaves_the_digits_of_names() -> None:
    class Optim(BaseConfig):
        peak_lr: float = Field(0.5, gt=0, json_schema_extra={FIRST_DEFAULT: 1e-4})
        fused: bool = True
        betas: tuple[float, float] = (0.9, 0.999)

    class Later(BaseConfig):
        """``Example`` with another default."""

        seed: int = 0
        kind: Literal["plain", "fancy"] = "plain"
        margin: float | None = None
        optim: Optim = Optim()

    assert name_digits(override(Later(), "optim.peak_lr", 1e-4)) == name_digits(Example())
    former = override(Example(), "optim.peak_lr", 0.5)
    assert name_digits(Later()) == name_digits(former) != name_digits(Example())


class RenamedOptim(BaseConfig):
    rate: float = Field(1e-4, gt=0, json_schema_extra={FORMERLY: ["peak_lr", "peak_rate"]})
    fused: bool = True
    betas: tuple[float, float] = (0.9, 0.999)


class Renamed(BaseConfig):
    """``Example`` with other names of a setting and of a section."""

    seed: int = 0
    kind: Literal["plain", "fancy"] = "plain"
    margin: float | None = None
    updates: RenamedOptim = Field(RenamedOptim(), json_schema_extra={FORMERLY: ["optim"]})


FORMER_PATHS = ("optim.peak_lr", "optim.peak_rate", "optim.rate", "updates.peak_lr", "updates.rate")


@pytest.mark.parametrize("path", FORMER_PATHS)
def test_a_setting_is_given_by_a_former_name_in_a_file_an_option_and_a_record(
    path: str, tmp_path: Path
) -> None:
    expected = Renamed(updates=RenamedOptim(rate=0.5))
    section, name = path.split(".")
    mapping = {section: {name: 0.5}}
    assert override(Renamed(), path, "0.5") == expected
    assert merge(Renamed, mapping, Renamed(updates=RenamedOptim(rate=0.25))) == expected
    assert Renamed.from_mapping(mapping) == expected
    assert changed_settings(mapping, expected) == []
    lines = changed_settings(mapping | {"removed": 1}, expected)
    assert "removed: 1 -> '(absent)'" in lines
    assert not any(line.startswith(("optim", "updates.rate")) for line in lines)
    file = tmp_path / "a.yaml"
    file.write_text(f"{section}: {{{name}: 0.5}}")
    assert load(Renamed, file) == expected
    assert present_path(Renamed, path) == "updates.rate"
    assert mapping == {section: {name: 0.5}}


def test_a_setting_that_is_renamed_leaves_the_digits_of_names() -> None:
    former = override(Example(), "optim.peak_lr", 0.5)
    renamed = Renamed.from_mapping(former.to_mapping())
    assert name_digits(renamed) == name_digits(former) != name_digits(Renamed())
    assert first_path(Renamed, "updates.rate") == "optim.peak_lr"
    assert first_path(Renamed, "updates.fused") == "optim.fused"


@pytest.mark.parametrize("path", ["updates", "seed.more", "updates.rate.more", "nothing", "a.b"])
def test_a_path_without_former_names_stays_as_it_is(path: str) -> None:
    assert present_path(Renamed, path) == path


@pytest.mark.parametrize(
    ("mapping", "path"),
    [
        ({"updates": {"peak_lr": 0.5, "rate": 0.5}}, "updates.rate"),
        ({"updates": {"peak_lr": 0.5, "peak_rate": 0.5}}, "updates.rate"),
        ({"optim": {}, "updates": {}}, "updates"),
    ],
)
def test_a_setting_under_two_names_is_refused(mapping: dict[str, Any], path: str) -> None:
    for read in (Renamed.from_mapping, partial(merge, Renamed)):
        with pytest.raises(ConfigError, match=rf"^{path}: is given twice.*keep one$"):
            read(mapping)


def test_options_for_a_setting_under_two_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^updates\.rate: is given twice"):
        override_all(Renamed(), {"optim.peak_lr": "1", "updates.rate": "1"})


def test_an_invalid_value_under_a_former_name_is_shown_with_the_present_one() -> None:
    with pytest.raises(ConfigError, match=r"^updates\.rate: got -1, want a number > 0"):
        Renamed.from_mapping({"optim": {"peak_lr": -1}})


@pytest.mark.parametrize("method", METHODS)
def test_no_former_name_of_a_setting_is_a_present_name_or_that_of_another_one(method: str) -> None:
    sections: list[Any] = [METHODS[method].config]
    while sections:
        section = sections.pop()
        names = list(section.model_fields)
        for info in section.model_fields.values():
            if isinstance(info.json_schema_extra, dict):
                names += info.json_schema_extra.get(FORMERLY, [])
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseConfig):
                sections.append(info.annotation)
        assert len(names) == len(set(names)), section


def test_difference_names_each_setting_that_differs():
    old, new = Example(), Example(seed=2, optim=Optim(fused=False))
    assert difference(old.to_mapping(), new.to_mapping()) == [
        "optim.fused: True -> False",
        "seed: 0 -> 2",
    ]
    assert difference({"a": 1}, {}) == ["a: 1 -> '(absent)'"]
    assert difference(old.to_mapping(), old.to_mapping()) == []


def test_fields_lists_every_leaf_with_type_default_range_and_meaning():
    by_path = {field.path: field for field in fields(Example)}
    assert list(by_path) == [
        "seed",
        "kind",
        "margin",
        "optim.peak_lr",
        "optim.fused",
        "optim.betas",
    ]
    assert by_path["optim.peak_lr"] == (
        "optim.peak_lr",
        "float",
        "0.0001",
        "> 0, <= 1",
        "highest learning rate",
    )
    assert by_path["kind"].type == "plain | fancy"
    assert by_path["margin"].type == "float | null"
    assert by_path["margin"].default == "null"
    assert by_path["optim.betas"].type == "list of float, float"
    assert by_path["optim.betas"].default.startswith("[")


def test_help_and_errors_show_the_range_of_list_entries():
    class Listed(BaseConfig):
        counts: tuple[Annotated[int, Field(ge=1)], ...] = Field(
            (3,), min_length=1, description="some"
        )

    assert list(fields(Listed)) == [("counts", "list of int >= 1", "[3]", "of length >= 1", "some")]
    with pytest.raises(
        ConfigError, match=r"counts: got \[0\], want a list of a whole number >= 1 of length >= 1"
    ):
        override(Listed(), "counts", "[0]")


def test_settings_that_only_fit_together_can_be_overridden_together() -> None:
    class Pair(BaseConfig):
        low: int = 0
        high: int = 1

        @model_validator(mode="after")
        def _ordered(self) -> "Pair":
            if self.low >= self.high:
                raise ValueError("low must be below high")
            return self

    assert override_all(Pair(), {"low": 5, "high": "9"}) == Pair(low=5, high=9)
    with pytest.raises(ConfigError, match="low must be below high"):
        override(Pair(), "low", 5)


def test_a_setting_missing_from_a_saved_mapping_counts_as_its_default():
    older = Example().to_mapping()
    del older["optim"]["fused"]
    assert changed_settings(older, Example()) == []
    assert changed_settings(older, Example(optim=Optim(fused=False))) == [
        "optim.fused: True -> False"
    ]
    assert changed_settings(older | {"gone": 1}, Example()) == [
        "gone: 1 -> '(absent)'",
        "optim.fused: '(absent)' -> True",
    ]


def test_steps_that_are_given_replace_the_epochs_of_a_configuration_below(tmp_path: Path) -> None:
    by_epochs = override_all(
        TrainingConfig(), {"schedule.max_epochs": 3, "schedule.evaluate_every_epochs": 1}
    )
    by_steps = override_all(by_epochs, {"schedule.max_steps": "50"}).schedule
    assert (by_steps.max_steps, by_steps.max_epochs, by_steps.evaluate_every_epochs) == (
        50,
        None,
        1,
    )
    file = tmp_path / "steps.yaml"
    file.write_text("schedule: {evaluate_every_steps: 7}")
    loaded = load(TrainingConfig, file, by_epochs).schedule
    assert (loaded.evaluate_every_steps, loaded.evaluate_every_epochs, loaded.max_epochs) == (
        7,
        None,
        3,
    )
    # A run's own configuration holds both: the steps are those of its epochs.
    both = override_all(by_steps_and_epochs(by_epochs), {}).schedule
    assert (both.max_steps, both.max_epochs) == (30, 3)
    file.write_text("schedule: {max_steps: 30, max_epochs: 3}")
    assert load(TrainingConfig, file).schedule.max_epochs == 3


def test_each_setting_of_the_warm_up_replaces_the_other_of_a_configuration_below(
    tmp_path: Path,
) -> None:
    def warm_up(config: TrainingConfig) -> tuple[int, float]:
        return config.optim.num_warmup_steps, config.optim.warmup_ratio

    by_steps = override_all(TrainingConfig(), {"optim.num_warmup_steps": 500})
    by_ratio = override_all(by_steps, {"optim.warmup_ratio": "0.1"})
    assert warm_up(by_ratio) == (0, 0.1)
    assert warm_up(override(by_ratio, "optim.num_warmup_steps", "0")) == (0, 0)
    file = tmp_path / "optim.yaml"
    file.write_text("optim: {warmup_ratio: 0.2}")
    assert warm_up(load(TrainingConfig, file, by_steps)) == (0, 0.2)
    file.write_text("optim: {num_warmup_steps: 7}")
    assert warm_up(load(TrainingConfig, file, by_ratio)) == (7, 0)
    # A run's own configuration holds both.
    both = override_all(by_steps, {"optim.warmup_ratio": 0.1, "optim.num_warmup_steps": 7})
    assert warm_up(both) == (7, 0.1)
    assert TrainingConfig.from_mapping(both.to_mapping()) == both
    assert override_all(both, {"optim.peak_lr": "0.5"}).optim.num_warmup_steps == 7


def by_steps_and_epochs(config: TrainingConfig) -> TrainingConfig:
    return config.model_copy(update={"schedule": config.schedule.in_steps(10.0)})


@pytest.mark.parametrize(
    "epochs, steps_per_epoch, expected",
    [(3, 10 / 3, 10), (1, 2.5, 3), (0.1, 2.5, 1), (2, 432.5, 865), (100, 0.7, 70)],
)
def test_the_last_epoch_is_trained_to_its_end(
    epochs: float, steps_per_epoch: float, expected: int
) -> None:
    schedule = ScheduleConfig(max_epochs=epochs, evaluate_every_epochs=1)
    in_steps = schedule.in_steps(steps_per_epoch)
    assert in_steps.max_steps == expected
    assert in_steps.evaluate_every_steps == max(1, round(steps_per_epoch))
    assert in_steps.in_steps(steps_per_epoch) == in_steps
