from raybio.methods.contrastive_probe import published


def test_the_tables_of_the_paper_are_complete() -> None:
    assert len(published.table_3()) == 18
    assert [row.acc_at_10 for row in published.table_3() if row.approach.startswith("X-FACTR")] == [
        None
    ] * 6
    assert list(published.table_6()) == ["LAMA", "BioLAMA", "MedLAMA"]
    assert len(published.table_7()) == 10
    assert len(published.table_10()) == 9
    assert len(published.paper_prompts()) == 19


def test_tables_of_the_paper_agree_where_they_overlap() -> None:
    full_by_model = {model: pairs["full", "micro"] for model, pairs in published.table_10().items()}
    for row in published.table_3():
        if row.approach == "Contrastive-Probe":
            assert full_by_model[row.model] == (row.acc_at_1, row.acc_at_10)


def test_prompts_have_one_head_and_one_answer_and_are_in_order() -> None:
    prompts = published.paper_prompts()
    assert list(prompts) == sorted(prompts)
    assert all(prompt.count("[X]") == prompt.count("[Y]") == 1 for prompt in prompts.values())
