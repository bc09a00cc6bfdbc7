"""Against PyTorch: BERT that predicts masked tokens, and BERT that tells pairs of texts apart, from the same folder."""

from torch_bert_run import ClassesReference, MaskedTokensReference


class MaskedTokensTest(MaskedTokensReference):
    def test_losses_and_weights(self):
        self.compare(None, "CONSTANT", *self.args)

    def test_losses_and_weights_with_exact_clipping_on_two_workers_under_the_smallest_plan(self):
        self.compare(0.5, "LINEAR", *self.args, "--workers", 2, "--set", "relay.inner=RECOMPUTE")


class ClassesTest(ClassesReference):
    def test_losses_and_weights(self):
        self.compare(None, "CONSTANT", *self.args)

    def test_losses_and_weights_with_exact_clipping_on_two_workers_under_the_smallest_plan(self):
        self.compare(0.5, "LINEAR", *self.args, "--workers", 2, "--set", "relay.inner=RECOMPUTE")
