#include "common/corpus/tokenize_corpus.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/corpus/testing.h"
#include "common/formats/document_index.h"
#include "common/formats/token_file.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class TokenizeCorpusTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_OK(WriteFileAtomically(dir_.File(name), content));
    return dir_.File(name);
  }

  absl::StatusOr<TokenizeReport> Run(TokenizeOptions options, const Tokenizer& tokenizer) {
    if (options.out.empty()) options.out = out_;
    return TokenizeCorpus(options, tokenizer, nullptr, stop_);
  }

  void RemoveOut() {
    for (const char* end : {"", ".docs"}) std::filesystem::remove(out_ + end);
  }

  // Documents of out_, decoded: special tokens in braces, what is counted in parentheses, then "#label", "@second
  // part".
  std::vector<std::string> Documents(const Tokenizer& tokenizer) {
    const auto index = DocumentIndex::Open(out_ + ".docs");
    EXPECT_OK(index);
    if (!index.ok()) return {};
    const auto file = TokenFile::Open(out_, (*index)->token_bytes());
    EXPECT_OK(file);
    EXPECT_EQ((*file)->num_tokens(), (*index)->num_tokens());
    std::vector<std::string> documents;
    for (int64_t i = 0; i < (*index)->num_documents(); ++i) {
      const int64_t first = (*index)->first_token(i), length = (*index)->first_token(i + 1) - first;
      std::vector<int32_t> ids(static_cast<size_t>(length));
      EXPECT_OK((*file)->Read(first, tokenizer.vocab(), absl::MakeSpan(ids)));
      std::string text;
      bool counted = false;
      for (int64_t t = 0; t < length; ++t) {
        if ((*index)->is_counted(first + t) != counted) text += counted ? ")" : "(";
        counted = (*index)->is_counted(first + t);
        text += tokenizer.Decode({ids[static_cast<size_t>(t)]}, false);
      }
      if (counted) text += ")";
      if ((*index)->label(i)) absl::StrAppend(&text, "#", *(*index)->label(i));
      if ((*index)->second_part(i) != length) absl::StrAppend(&text, "@", (*index)->second_part(i));
      documents.push_back(text);
    }
    return documents;
  }

  void ExpectNothingLeft(size_t num_sources) {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir_.path())) ++count;
    EXPECT_EQ(count, num_sources);
  }

  TempDir dir_;
  std::string out_ = dir_.File("out.bin");
  std::atomic<bool> stop_ = false;
};

using Strings = std::vector<std::string>;

TEST_F(TokenizeCorpusTest, TextFilesAreDocumentsThatEnd) {
  const FakeTokenizer tokenizer({.specials = {"<|endoftext|>"}});
  const std::vector<std::string> sources = {Write("a.txt", "one<|endoftext|>"), Write("b.txt", ""),
                                            Write("c.txt", "two\n")};
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = sources}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(one<|endoftext|>{<|endoftext|>})", "(two\n{<|endoftext|>})"}));
  EXPECT_EQ(report.counts.documents, 2);
  EXPECT_EQ(report.counts.tokens, 17 + 5);
  EXPECT_EQ(report.counts.counted_tokens, 17 + 5);
  EXPECT_EQ(report.counts.longest_document, 17);
  EXPECT_EQ(report.counts.empty_documents, 1);
  EXPECT_EQ(report.source_bytes, 20);
  EXPECT_EQ(report.token_bytes, 2);
  ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(out_ + ".docs"));
  EXPECT_TRUE(index->may_be_cut());
  EXPECT_EQ(index->tokenizer_fingerprint(), tokenizer.fingerprint());
}

TEST_F(TokenizeCorpusTest, TextsBeginAndEndAsTheTokenizerHasIt) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>", "<x>"}});
  const std::string source = Write("a.txt", "a");
  ASSERT_OK(Run({.sources = {source}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"({<s>}a{</s>})"}));
  RemoveOut();
  ASSERT_OK(Run({.sources = {source}, .bos = "", .eos = "<x>"}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a{<x>})"}));
  RemoveOut();
  EXPECT_THAT(Run({.sources = {source}, .eos = "<y>"}, tokenizer),
              StatusIs(kInvalid, "eos: the tokenizer has no token \"<y>\""));
}

TEST_F(TokenizeCorpusTest, ALineSeparatesTexts) {
  const FakeTokenizer tokenizer;
  ASSERT_OK(Run({.sources = {Write("a.txt", "a\n%%\nb\n%%\n%%\nc")}, .separator = "%%"}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a\n)", "(b\n)", "(c)"}));
}

TEST_F(TokenizeCorpusTest, LongTextsAreOneDocument) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>"}});
  std::string text;
  for (int i = 0; text.size() < 5'000'000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {Write("a.txt", text)}, .threads = 3}, tokenizer));
  EXPECT_EQ(report.counts.documents, 1);
  EXPECT_EQ(Documents(tokenizer), (Strings{"({<s>}" + text + "{</s>})"}));
}

TEST_F(TokenizeCorpusTest, JsonlOfTextIsText) {
  const FakeTokenizer tokenizer;
  ASSERT_OK(
      Run({.sources = {Write("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"b\"}")}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a)", "(b)"}));
}

TEST_F(TokenizeCorpusTest, OfConversationsTheAnswersCount) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}});
  const std::string source =
      Write("a.jsonl", R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
{"messages": [{"role": "user", "content": "unanswered"}]}
{"messages": []}
)");
  const std::string alpaca = Write("b.jsonl", R"({"instruction": "q", "input": "i", "output": "a"})");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source, alpaca}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer),
            (Strings{"{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant\n(a{<|im_end|>})\n",
                     "{<|im_start|>}user\nq\n\ni{<|im_end|>}\n{<|im_start|>}assistant\n(a{<|im_end|>})\n"}));
  EXPECT_EQ(report.chat_template, "chatml");
  EXPECT_EQ(report.counts.counted_tokens, 4);
  EXPECT_EQ(report.counts.uncounted_documents, 1);
  EXPECT_EQ(report.counts.empty_documents, 1);
  ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(out_ + ".docs"));
  EXPECT_FALSE(index->may_be_cut());
}

TEST_F(TokenizeCorpusTest, OfConversationsAllMayCount) {
  const FakeTokenizer tokenizer({.specials = {"<|endoftext|>"}});
  const std::string source = Write("a.jsonl", R"({"prompt": "q", "completion": "a"})");
  ASSERT_OK(Run({.sources = {source}, .count_all = true}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(### User:\nq\n\n### Assistant:\na{<|endoftext|>})"}));
}

TEST_F(TokenizeCorpusTest, ADocumentsFirstTokenMovesWhatIsCounted) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>", "[INST]", "[/INST]"}});
  ASSERT_OK(Run({.sources = {Write("a.jsonl", R"({"prompt": "q", "completion": "a"})")}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"{<s>}{[INST]}q{[/INST]}(a{</s>})"}));
}

TEST_F(TokenizeCorpusTest, APairOfAnswersIsOneDocumentOfTwoConversations) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}});
  const std::string strings = Write("a.jsonl", R"({"prompt": "q", "chosen": "good", "rejected": "bad"})");
  const std::string messages = Write("b.jsonl", R"({"chosen": [{"role": "user", "content": "q"},)"
                                                R"( {"role": "assistant", "content": "good"}],)"
                                                R"( "rejected": [{"role": "user", "content": "q"},)"
                                                R"( {"role": "assistant", "content": "bad"}]})");
  const std::string prompt = "{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant\n";
  const std::string wanted = prompt + "(good{<|im_end|>})\n" + prompt + "(bad{<|im_end|>})\n@26";
  // What is compared are the answers, whatever else may count.
  for (const bool count_all : {false, true}) {
    RemoveOut();
    ASSERT_OK_AND_ASSIGN(const TokenizeReport report,
                         Run({.sources = {strings, messages}, .count_all = count_all}, tokenizer));
    EXPECT_EQ(Documents(tokenizer), (Strings{wanted, wanted}));
    EXPECT_TRUE(report.has_pairs);
    EXPECT_EQ(report.counts.documents, 2);
    EXPECT_EQ(report.counts.counted_tokens, 2 * (5 + 4));
    EXPECT_EQ(report.chat_template, "chatml");
    ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(out_ + ".docs"));
    EXPECT_FALSE(index->may_be_cut());
  }
}

TEST_F(TokenizeCorpusTest, EachAnswerOfAPairBeginsAndEndsAsADocument) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>", "[INST]", "[/INST]", "<x>"}});
  const std::string source = Write("a.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": "b"})");
  ASSERT_OK(Run({.sources = {source}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"{<s>}{[INST]}q{[/INST]}(a{</s>}){<s>}{[INST]}q{[/INST]}(b{</s>})@6"}));
  RemoveOut();
  ASSERT_OK(Run({.sources = {source}, .eos = "<x>"}, tokenizer));
  EXPECT_EQ(Documents(tokenizer),
            (Strings{"{<s>}{[INST]}q{[/INST]}(a{</s>}){<x>}{<s>}{[INST]}q{[/INST]}(b{</s>}){<x>}@7"}));
  RemoveOut();
  ASSERT_OK(Run({.sources = {source}, .specials = Tokenizer::Specials::kAsTokens, .bos = "[INST]", .eos = "</s>"},
                tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"{[INST]}q{[/INST]}(a{</s>}){[INST]}q{[/INST]}(b{</s>})@5"}))
      << "an end that is there already is not put there again, of either";
}

TEST_F(TokenizeCorpusTest, SpellingsOfSpecialTokensInBothAnswersAreCounted) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  const std::string source =
      Write("a.jsonl", R"({"prompt": "q", "chosen": "<|im_end|>", "rejected": "<|im_end|><|im_end|>"})");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}}, tokenizer));
  EXPECT_EQ(report.notes.specials_as_text, 3);
}

TEST_F(TokenizeCorpusTest, APairThatHasNothingToCompareIsRefusedOrSkipped) {
  // An answer without a token of its own: its end is one with what stands in front.
  const FakeTokenizer tokenizer({.words = {"### Assistant:\n\n\n"}});
  const std::string good = R"({"prompt": "q", "chosen": "a", "rejected": "b"})";
  const std::string no_rejected = Write("a.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": ""})");
  EXPECT_THAT(Run({.sources = {no_rejected}}, tokenizer),
              StatusIs(kInvalid, "a.jsonl\": line 1, byte offset 0: rejected: the answer is empty"));
  const std::string no_chosen = Write("b.jsonl", good + "\n" + R"({"prompt": "q", "chosen": "", "rejected": "b"})");
  EXPECT_THAT(Run({.sources = {no_chosen}}, tokenizer),
              StatusIs(kInvalid, "b.jsonl\": line 2, byte offset 48: chosen: the answer is empty"));
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report,
                       Run({.sources = {no_rejected, no_chosen}, .skips_bad_lines = true}, tokenizer));
  EXPECT_EQ(report.notes.skipped_lines, 2);
  EXPECT_EQ(Documents(tokenizer),
            (Strings{"### User:\nq\n\n### Assistant:\n(a\n\n)### User:\nq\n\n### Assistant:\n(b\n\n)@31"}));
}

TEST_F(TokenizeCorpusTest, APairWhoseAnswersBecomeTheSameTokensIsRefused) {
  const FakeTokenizer tokenizer(
      {.specials = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}});
  const std::string source = Write("a.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": "a\n"})");
  EXPECT_THAT(Run({.sources = {source}, .chat_template = "llama3"}, tokenizer),
              StatusIs(kInvalid, "line 1, byte offset 0: rejected: has the tokens that chosen has"));
}

TEST_F(TokenizeCorpusTest, WhatATemplateRefusesOfAPairIsNamedByItsAnswer) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>", "[INST]", "[/INST]"}});
  const std::string source = Write(
      "a.jsonl", R"({"prompt": [{"role": "user", "content": "q"}],)"
                 R"( "chosen": [{"role": "assistant", "content": "a"}],)"
                 R"( "rejected": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_THAT(Run({.sources = {source}}, tokenizer),
              StatusIs(kInvalid, "line 1, byte offset 0: rejected: messages[2].role: assistant, template mistral"));
}

TEST_F(TokenizeCorpusTest, PairsAreThereWhereTheyAreWantedAndOnlyThere) {
  const FakeTokenizer tokenizer;
  const std::string empty = Write("empty.jsonl", "\n");
  const std::string pairs = Write("a.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": "b"})");
  const std::string prompts = Write("b.jsonl", R"({"prompt": "q", "completion": "a"})");
  // As some have both: pairs, and the chosen answer once more.
  const std::string both = Write("c.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": "b", "messages": )"
                                            R"([{"role": "assistant", "content": "a"}]})");
  ASSERT_OK(Run({.sources = {empty, pairs}, .pairs = true}, tokenizer));
  RemoveOut();
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {prompts}, .pairs = false}, tokenizer));
  EXPECT_FALSE(report.has_pairs);
  RemoveOut();
  EXPECT_THAT(
      Run({.sources = {empty, pairs}, .pairs = false}, tokenizer),
      StatusIs(kInvalid, "\"" + pairs + "\" has pairs of a chosen and a rejected answer, of which a run learns"));
  EXPECT_THAT(Run({.sources = {prompts}, .pairs = true}, tokenizer),
              StatusIs(kInvalid, "\"" + prompts + "\" has no pairs of answers: \"preferences\" wants lines with"));
  for (const bool wanted : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const TokenizeReport of_both, Run({.sources = {both}, .pairs = wanted}, tokenizer));
    EXPECT_EQ(of_both.has_pairs, wanted);
    RemoveOut();
  }
  EXPECT_THAT(Run({.sources = {Write("d.txt", "a")}, .pairs = true}, tokenizer),
              StatusIs(kInvalid, "d.txt\" has no pairs of answers"));
  EXPECT_THAT(Run({.sources = {pairs, prompts}}, tokenizer),
              StatusIs(kInvalid, "b.jsonl\" holds conversations, \"" + pairs + "\" pairs of answers"));
  ExpectNothingLeft(5);
}

TEST_F(TokenizeCorpusTest, TheModelsOwnTemplateIsTakenAndNamed) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>", "[INST]", "[/INST]", "<|im_start|>", "<|im_end|>"}});
  const std::string source = Write("a.jsonl", R"({"prompt": "q", "completion": "a"})");
  const std::string chatml = "{{ bos_token }}{{'<|im_start|>' + message['role'] + '\n' + '<|im_end|>' + '\n'}}";
  ASSERT_OK_AND_ASSIGN(
      const TokenizeReport report,
      Run({.sources = {source}, .settings = {.chat_template = chatml, .chat_template_place = "m/x.jinja"}}, tokenizer));
  EXPECT_EQ(report.chat_template, "chatml");
  EXPECT_EQ(report.chat_template_reason, "by m/x.jinja");
  EXPECT_EQ(Documents(tokenizer),
            (Strings{"{<s>}{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant\n(a{<|im_end|>})\n"}))
      << "it begins with bos_token, as the model's does";
  RemoveOut();
  EXPECT_THAT(Run({.sources = {source}, .settings = {.chat_template = "{{ x }}", .chat_template_place = "m/x.jinja"}},
                  tokenizer),
              StatusIs(kInvalid, "template: auto, but the model's own template (m/x.jinja)"));
}

TEST_F(TokenizeCorpusTest, TextsBeginAndEndAsTheModelsSettingsSay) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>", "<end>"}});
  const std::string source = Write("a.txt", "a");
  ASSERT_OK(Run({.sources = {source}, .settings = {.bos_token = "", .eos_token = "<end>"}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a{<end>})"}));
  RemoveOut();
  EXPECT_THAT(
      Run({.sources = {source}, .settings = {.eos_token = "<none>"}}, tokenizer),
      StatusIs(kInvalid, "eos, as tokenizer_config.json or special_tokens_map.json has it: the tokenizer has no"));
}

TEST_F(TokenizeCorpusTest, SpellingsOfSpecialTokensAreTextThatIsCounted) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>"}});
  const std::string source = Write("a.jsonl", "{\"text\": \"<s>a</s>\"}\n{\"text\": \"b\"}");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}}, tokenizer));
  EXPECT_EQ(report.notes.specials_as_text, 2);
  EXPECT_EQ(Documents(tokenizer), (Strings{"({<s>}<s>a</s>{</s>})", "({<s>}b{</s>})"}));
}

TEST_F(TokenizeCorpusTest, SpecialTokensOfADocumentAreNotPutInASecondTime) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>"}});
  const std::string source = Write("a.jsonl", "{\"text\": \"<s>a</s>\"}\n{\"text\": \"b\"}\n{\"text\": \"<s>\"}");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report,
                       Run({.sources = {source}, .specials = Tokenizer::Specials::kAsTokens}, tokenizer));
  EXPECT_EQ(report.notes.specials_as_text, 0);
  EXPECT_EQ(Documents(tokenizer), (Strings{"({<s>}a{</s>})", "({<s>}b{</s>})", "({<s>}{</s>})"}));
}

TEST_F(TokenizeCorpusTest, BadLinesMayBeSkippedAndAreCounted) {
  const FakeTokenizer tokenizer;
  const std::string source =
      Write("a.jsonl", "{\"text\": 3}\n{\"text\": \"a\\ud83d\"}\n{\"text\": }\n\n{}\n{\"text\": \"b\"}\nx\n");
  EXPECT_THAT(Run({.sources = {source}}, tokenizer), StatusIs(kInvalid, "line 1"));
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}, .skips_bad_lines = true}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a\uFFFD)", "(b)"}));
  EXPECT_EQ(report.notes.skipped_lines, 4);
  ASSERT_EQ(report.notes.skip_reasons.size(), EncodeNotes::kMaxReasons);
  EXPECT_EQ(report.notes.skip_reasons[0],
            absl::StrCat("\"", source, "\": line 1, byte offset 0: text: is number, must be a string"));
  EXPECT_EQ(report.notes.replaced_surrogates, 1);
}

TEST_F(TokenizeCorpusTest, ALineThatIsTooLongEndsItOrIsSkipped) {
  const FakeTokenizer tokenizer;
  const std::string lengthy(LineReader::kMaxLineBytes + 1, ' ');
  const std::string source = Write("a.jsonl", absl::StrCat("{\"text\": \"a\"}\n", lengthy, "\n{\"text\": \"b\"}\n"));
  EXPECT_THAT(Run({.sources = {source}}, tokenizer),
              StatusIs(kInvalid, "a.jsonl\": line 2, byte offset 14: a line of"));
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}, .skips_bad_lines = true}, tokenizer));
  EXPECT_EQ(report.notes.skipped_lines, 1);
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a)", "(b)"}));
}

TEST_F(TokenizeCorpusTest, ABadFirstLineIsSkippedToo) {
  const FakeTokenizer tokenizer;
  const std::string source = Write("a.jsonl", "oops\n{\"text\": \"b\"}\n");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}, .skips_bad_lines = true}, tokenizer));
  EXPECT_EQ(report.notes.skipped_lines, 1);
  EXPECT_EQ(Documents(tokenizer), (Strings{"(b)"}));
}

TEST_F(TokenizeCorpusTest, TextsBeginAndEndAsBertsWhereTheTokenizerIs) {
  const FakeTokenizer tokenizer({.specials = {"[CLS]", "[SEP]", "[MASK]"}});
  ASSERT_OK(Run({.sources = {Write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"bc\"}\n")}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"({[CLS]}a{[SEP]})", "({[CLS]}bc{[SEP]})"}));
  RemoveOut();
  ASSERT_OK(Run({.sources = {Write("b.txt", "d")}, .bos = "", .eos = ""}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(d)"}));
}

TEST_F(TokenizeCorpusTest, RowsThatCannotBeTakenMayBeSkippedAndTheirLabelsWithThem) {
  const FakeTokenizer tokenizer;
  const std::string source = Write("a.tsv", "sentence\tlabel\na\tno\nb\tperhaps\tmore\nc\t\nd\tyes\n");
  EXPECT_THAT(Run({.sources = {source}}, tokenizer),
              StatusIs(kInvalid, "line 3, byte offset 20: 3 columns, must be 2"));
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}, .skips_bad_lines = true}, tokenizer));
  EXPECT_EQ(report.notes.skipped_lines, 2);
  EXPECT_NE(report.notes.skip_reasons.front().find("a.tsv\": line 3"), std::string::npos);
  EXPECT_EQ(report.class_names, (Strings{"no", "yes"}));
  EXPECT_EQ(report.counts.documents, 2);
}

TEST_F(TokenizeCorpusTest, ATableWithoutAHeaderBeginsWithItsFirstRow) {
  const FakeTokenizer tokenizer;
  ASSERT_OK(Run(
      {.sources = {Write("a.tsv", "x\t1\ta\nx\t0\tb\n")}, .columns = {.has_header = false, .text = "3", .label = "2"}},
      tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"(a)#1", "(b)#0"}));
}

TEST_F(TokenizeCorpusTest, TextsWithClassesAreBertsWhereTheTokenizerIs) {
  const FakeTokenizer tokenizer({.specials = {"[CLS]", "[SEP]"}});
  const std::string source = Write("a.tsv", "sentence1\tsentence2\tlabel\na\tb\tyes\nc\td\tno\n\t\tno\n\te\tyes\n");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"({[CLS]}a{[SEP]}b{[SEP]})#1@3", "({[CLS]}c{[SEP]}d{[SEP]})#0@3",
                                           "({[CLS]}{[SEP]}e{[SEP]})#1@2"}));
  EXPECT_EQ(report.class_names, (Strings{"no", "yes"}));
  EXPECT_EQ(report.num_classes, 2);
  EXPECT_EQ(report.counts.empty_documents, 1);
}

TEST_F(TokenizeCorpusTest, TextsWithClassesAreLinesWhereTheTokenizerHasNoCls) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>"}});
  const std::string source = Write("a.tsv", "text\tlabel\tmore\na\t5\tb\n");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report,
                       Run({.sources = {source}, .columns = {.text = "text", .second_text = "more"}}, tokenizer));
  EXPECT_EQ(Documents(tokenizer), (Strings{"({<s>}a\nb{</s>})#5@3"}));
  EXPECT_EQ(report.num_classes, 6);
  EXPECT_TRUE(report.class_names.empty());
}

TEST_F(TokenizeCorpusTest, LargeVocabulariesTakeFourBytes) {
  const FakeTokenizer large({.vocab = 65537});
  const std::string source = Write("a.txt", "abc");
  EXPECT_THAT(Run({.sources = {source}, .token_bytes = 2}, large), StatusIs(kInvalid, "token_bytes: 2, must be 4"));
  ASSERT_OK_AND_ASSIGN(const TokenizeReport report, Run({.sources = {source}}, large));
  EXPECT_EQ(report.token_bytes, 4);
  EXPECT_THAT(ReadFile(out_), IsOkAndHolds(std::string("a\0\0\0b\0\0\0c\0\0\0", 12)));
}

TEST_F(TokenizeCorpusTest, TheBytesAreTheSameForAnyNumberOfThreads) {
  const FakeTokenizer tokenizer({.specials = {"<|endoftext|>"}});
  std::string lines;
  for (int i = 0; i < 30'000; ++i) {
    absl::StrAppend(&lines, "{\"prompt\": \"", std::string(static_cast<size_t>(i % 97), 'q'), "\", \"response\": \"",
                    std::string(static_cast<size_t>(i % 61), 'a'), "\"}\n");
  }
  const std::string source = Write("a.jsonl", lines);
  std::string tokens, index;
  for (const int threads : {1, 2, 5}) {
    const std::string out = dir_.File(absl::StrCat("out", threads));
    ASSERT_OK(Run({.sources = {source, source}, .out = out, .threads = threads}, tokenizer));
    ASSERT_OK_AND_ASSIGN(const std::string these_tokens, ReadFile(out));
    ASSERT_OK_AND_ASSIGN(const std::string this_index, ReadFile(out + ".docs"));
    if (threads == 1) {
      tokens = these_tokens;
      index = this_index;
    }
    EXPECT_TRUE(these_tokens == tokens) << threads;
    EXPECT_TRUE(this_index == index) << threads;
  }
}

TEST_F(TokenizeCorpusTest, TheFirstErrorIsTheOneThatIsToldWhoeverIsFaster) {
  const FakeTokenizer tokenizer;
  std::string lines;
  for (int i = 1; i <= 50'000; ++i) {
    absl::StrAppend(&lines, i == 20'000 || i > 20'005 ? "{\"text\": 3}" : "{\"text\": \"abcdefghijklmnop\"}", "\n");
  }
  const std::string source = Write("a.jsonl", lines);
  for (const int threads : {1, 4}) {
    EXPECT_THAT(Run({.sources = {source}, .threads = threads}, tokenizer),
                StatusIs(kInvalid, absl::StrCat("\"", source, "\": line 20000, byte offset 579971: text: is number")));
    ExpectNothingLeft(1);
  }
}

TEST_F(TokenizeCorpusTest, ErrorsNameFileAndPlace) {
  const FakeTokenizer tokenizer;
  const auto refused = [&](const std::string& name, const std::string& content) {
    return Run({.sources = {Write(name, content)}}, tokenizer).status();
  };
  EXPECT_THAT(refused("a.jsonl", "{\"text\": \"a\"}\n{\"text\": }"),
              StatusIs(kInvalid, "a.jsonl\": line 2, byte offset 23: not valid JSON"));
  EXPECT_THAT(refused("b.jsonl", "{\"text\": \"a\"}\n{\"messages\": []}"),
              StatusIs(kInvalid, "b.jsonl\": line 2, byte offset 14: text: missing"));
  EXPECT_THAT(refused("c.tsv", ""), StatusIs(kInvalid, "c.tsv\": is empty"));
  EXPECT_THAT(refused("d.tsv", "text\tlabel\na\n"), StatusIs(kInvalid, "d.tsv\": line 2, byte offset 11: 1 columns"));
  EXPECT_THAT(refused("e.tsv", "text\tlabel\na\t0.5\n"),
              StatusIs(kInvalid, "e.tsv\": line 2, byte offset 11: column \"label\": \"0.5\""));
  EXPECT_THAT(refused("f.json", "[{\"text\": \"a\"}]"), StatusIs(kInvalid, "f.json\" is a JSON array"));
  EXPECT_THAT(refused("g.txt", ""), StatusIs(kInvalid, "no document to write: 1 were empty"));
  EXPECT_THAT(refused("h.jsonl", "\n"), StatusIs(kInvalid, "no document to write"));
  EXPECT_THAT(Run({.sources = {dir_.File("nowhere.txt")}}, tokenizer),
              StatusIs(absl::StatusCode::kNotFound, "nowhere.txt"));
  EXPECT_THAT(Run({.sources = {dir_.path()}}, tokenizer), StatusIs(kInvalid, "regular file"));
  ExpectNothingLeft(8);
}

TEST_F(TokenizeCorpusTest, BytesThatBecomeAnotherCharacterAreCountedAndTheFirstIsNamed) {
  const FakeTokenizer tokenizer({.replaces_no_text = true});
  const std::string first = Write("a.txt", "gut\n"), second = Write("b.txt", "ein\n%%\ng\xFCt, sch\xF6n\n");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport text, Run({.sources = {first, second}, .separator = "%%"}, tokenizer));
  EXPECT_EQ(text.notes.replaced_bytes, 2);
  EXPECT_EQ(text.notes.first_replaced, "\"" + second + "\": byte offset 8");
  const std::string table = Write("c.tsv", "text\tlabel\nfine\t1\nsch\xF6n\t0\n");
  ASSERT_OK_AND_ASSIGN(const TokenizeReport rows, Run({.sources = {table}, .out = dir_.File("c.bin")}, tokenizer));
  EXPECT_EQ(rows.notes.replaced_bytes, 1);
  EXPECT_EQ(rows.notes.first_replaced, "\"" + table + "\": line 3, byte offset 21");
  // A tokenizer of bytes has a token for each.
  ASSERT_OK_AND_ASSIGN(const TokenizeReport bytes,
                       Run({.sources = {second}, .out = dir_.File("d.bin")}, *MakeByteTokenizer()));
  EXPECT_EQ(bytes.notes.replaced_bytes, 0);
}

TEST_F(TokenizeCorpusTest, AnErrorOfAllSourcesNamesThemAndWhatToDo) {
  const FakeTokenizer tokenizer;
  const std::string chat = Write("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})");
  EXPECT_THAT(Run({.sources = {chat, chat}}, tokenizer),
              StatusIs(kInvalid, "\"" + chat + "\", \"" + chat +
                                     "\": there is no document to write: 0 were empty, 2 without a token that is "
                                     "counted; of a conversation the assistant's answers are: --count all"));
  const std::string bad = Write("b.jsonl", "{\"text\": \"\"}\n{\"text\": 3}\n");
  EXPECT_THAT(
      Run({.sources = {bad}, .skips_bad_lines = true}, tokenizer),
      StatusIs(kInvalid, "b.jsonl\", of which 1 bad lines were skipped: there is no document to write: 1 were"));
}

TEST_F(TokenizeCorpusTest, TextAndConversationsDoNotMix) {
  const FakeTokenizer tokenizer;
  EXPECT_THAT(
      Run({.sources = {Write("a.txt", "a"), Write("b.jsonl", "{\"prompt\": \"p\", \"response\": \"r\"}")}}, tokenizer),
      StatusIs(kInvalid, "b.jsonl\" holds conversations"));
}

TEST_F(TokenizeCorpusTest, BadOptionsAreNamed) {
  const FakeTokenizer tokenizer;
  const std::string source = Write("a.txt", "a");
  EXPECT_THAT(Run({}, tokenizer), StatusIs(kInvalid, "sources"));
  EXPECT_THAT(Run({.sources = {source}, .threads = 0}, tokenizer), StatusIs(kInvalid, "threads: 0"));
  EXPECT_THAT(Run({.sources = {source}, .token_bytes = 3}, tokenizer), StatusIs(kInvalid, "token_bytes: 3"));
}

TEST_F(TokenizeCorpusTest, WhatIsThereIsNotReplaced) {
  const FakeTokenizer tokenizer;
  Write("out.bin", "mine");
  EXPECT_THAT(Run({.sources = {Write("a.txt", "a")}}, tokenizer),
              StatusIs(absl::StatusCode::kAlreadyExists, "out.bin"));
  EXPECT_THAT(ReadFile(out_), IsOkAndHolds("mine"));
  const std::string notes = Write("notes.docs", "mine");
  EXPECT_THAT(Run({.sources = {notes}, .out = dir_.File("notes")}, tokenizer),
              StatusIs(absl::StatusCode::kAlreadyExists, "notes.docs"));
  EXPECT_THAT(ReadFile(notes), IsOkAndHolds("mine"));
}

TEST_F(TokenizeCorpusTest, AStopLeavesNothing) {
  const FakeTokenizer tokenizer;
  const std::string source = Write("a.txt", std::string(20 << 20, 'x'));
  TokenizeOptions options{.sources = {source}, .out = out_, .threads = 2};
  int reports = 0;
  const auto progress = [&](const TokenizeProgress& seen) {
    ++reports;
    EXPECT_EQ(seen.bytes_total, 20 << 20);
    stop_ = true;
  };
  EXPECT_THAT(TokenizeCorpus(options, tokenizer, progress, stop_), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(reports, 1);
  ExpectNothingLeft(1);
}

}  // namespace
}  // namespace eps
