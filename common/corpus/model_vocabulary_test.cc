#include "common/corpus/model_vocabulary.h"

#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ModelVocabularyTest, ATokenThatTheModelHasNotIsRefusedWhereItStands) {
  const FakeTokenizer tokenizer({.specials = {"<pad>"}});
  EXPECT_OK(CheckModelHas({'a', 255}, 256, tokenizer));
  EXPECT_OK(CheckModelHas({'a', 256}, 257, tokenizer));
  EXPECT_THAT(CheckModelHas({'a', 256, 255}, 256, tokenizer),
              StatusIs(kInvalid, "the token \"{<pad>}\" (256) is beyond the model's vocabulary of 256: take the"));
  EXPECT_THAT(CheckModelHas({0xE9}, 128, *MakeByteTokenizer()), StatusIs(kInvalid, "the token \"\\xe9\" (233)"));
}

TEST(ModelVocabularyTest, ATokenizerOfAnotherModelIsToldByItsSizeAlone) {
  const FakeTokenizer tokenizer({.vocab = 32001});
  EXPECT_OK(CheckModelHasMost(tokenizer, 32000));
  EXPECT_OK(CheckModelHasMost(tokenizer, 16001));
  EXPECT_THAT(CheckModelHasMost(tokenizer, 16000),
              StatusIs(kInvalid, "has ids up to 32000, and the model a vocabulary of 16000: take the"));
  EXPECT_OK(CheckModelHasMost(*MakeByteTokenizer(), 5));
}

}  // namespace
}  // namespace eps
