"""The best check on validation rows goes on, and a training that gets no better ends."""

from components.train_grpo.selection import ACCURACY, COMPLIANCE, Check, best_check, is_best, stopped_improving


def checks(*accuracies, compliance=0.5):
    return [
        Check(10 * (index + 1), {ACCURACY: value, COMPLIANCE: compliance}) for index, value in enumerate(accuracies)
    ]


def test_the_best_by_accuracy_goes_on():
    assert best_check(checks(0.1, 0.6, 0.4)).step == 20


def test_compliance_decides_between_equal_accuracies():
    first, second = checks(0.5)[0], checks(0.5, compliance=0.4)[0]
    assert best_check([first, second]) is first


def test_of_equal_checks_the_later_goes_on():
    assert best_check(checks(0.5, 0.5)).step == 20
    assert is_best(checks(0.5, 0.5))
    assert not is_best(checks(0.5, 0.4))


def test_without_a_check_there_is_no_best():
    assert best_check([]) is None


def test_patience_counts_checks_without_a_better_one():
    assert not stopped_improving(checks(0.5, 0.4), 2)
    assert stopped_improving(checks(0.5, 0.4, 0.5), 2)
    assert not stopped_improving(checks(0.5, 0.4, 0.6), 2)


def test_no_patience_never_ends_a_training():
    assert not stopped_improving(checks(0.5, 0.1, 0.1, 0.1), 0)
