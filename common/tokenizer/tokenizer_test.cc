#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/sha256.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Specials = Tokenizer::Specials;

class TokenizerTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_.File(name);
    EXPECT_OK(WriteFileAtomically(path, content));
    return path;
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& json) {
    return LoadTokenizer(Write("tokenizer.json", json));
  }
  std::unique_ptr<Tokenizer> MustLoad(const std::string& json) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Load(json);
    EXPECT_OK(tokenizer);
    return tokenizer.ok() ? *std::move(tokenizer) : MakeByteTokenizer();
  }
  // With one text in the place of another.
  static std::string With(const std::string& json, const std::string& from, const std::string& to) {
    EXPECT_THAT(json, HasSubstr(from));
    return absl::StrReplaceAll(json, {{from, to}});
  }
  static std::vector<int32_t> Ids(const Tokenizer& tokenizer, absl::string_view text,
                                  Specials specials = Specials::kAsTokens) {
    return tokenizer.Encode(text, specials);
  }

  TempDir folder_;
};

TEST_F(TokenizerTest, WhatIsPutInFrontOfATextIsWhatThePostProcessorSays) {
  const std::string byte_level = R"("post_processor":{"type":"ByteLevel","trim_offsets":true})";
  const auto with = [&](const std::string& processor) {
    return MustLoad(With(ByteLevelJson(), byte_level, "\"post_processor\":" + processor));
  };
  const auto with_bos = with(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",)"
                             R"("single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A"}}]}]})");
  EXPECT_TRUE(with_bos->PutsInFront("<s>"));
  EXPECT_FALSE(with_bos->PutsInFront("<other>"));
  EXPECT_TRUE(with(R"({"type":"RobertaProcessing","sep":["</s>",2],"cls":["<s>",0]})")->PutsInFront("<s>"));
  EXPECT_FALSE(with(R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]})")->PutsInFront("<s>"));
  EXPECT_FALSE(MustLoad(ByteLevelJson())->PutsInFront("<s>")) << "as GPT-2's";
  EXPECT_TRUE(MustLoad(ByteLevelJson())->PutsInFront("<|begin_of_text|>")) << "as Llama 3's";
  EXPECT_TRUE(MustLoad(CharacterJson())->PutsInFront("<s>")) << "as Llama's";
}

TEST_F(TokenizerTest, BytesAreTheirOwnIds) {
  const auto bytes = MakeByteTokenizer();
  EXPECT_EQ(bytes->vocab(), 256);
  EXPECT_THAT(Ids(*bytes, "a\xFF"), ElementsAre(97, 255));
  EXPECT_EQ(bytes->Decode({97, 255, 256, -1}, false), "a\xFF");
  EXPECT_EQ(bytes->TokenId("a"), 97);
  EXPECT_EQ(bytes->TokenId("ab"), std::nullopt);
  EXPECT_EQ(bytes->fingerprint(), MakeByteTokenizer()->fingerprint());
}

TEST_F(TokenizerTest, MergesGoByRankAndNotOverPieces) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  EXPECT_THAT(Ids(*tokenizer, "hello world"), ElementsAre(258, 'o', 259, 'o', 'r', 'l', 'd'));
  EXPECT_THAT(Ids(*tokenizer, "hello"), ElementsAre(258, 'o')) << "and again, as it was kept";
  EXPECT_THAT(Ids(*tokenizer, ""), IsEmpty());
}

TEST_F(TokenizerTest, ALongPieceMergesAsAShortOneDoes) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  std::string text;
  std::vector<int32_t> wanted;
  for (int i = 0; i < 1000; ++i) {
    text += i % 3 == 0 ? "hell" : "lle";
    if (i % 3 == 0) {
      wanted.push_back(258);
    } else {
      wanted.insert(wanted.end(), {257, 'e'});
    }
  }
  EXPECT_EQ(Ids(*tokenizer, text), wanted);
}

TEST_F(TokenizerTest, SpecialTokensInATextAreTextUnlessTheyAreWanted) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  EXPECT_THAT(Ids(*tokenizer, "a<|end|>b"), ElementsAre('a', 260, 'b'));
  EXPECT_THAT(Ids(*tokenizer, "<|end|>", Specials::kAsText), ElementsAre('<', '|', 'e', 'n', 'd', '|', '>'));
  EXPECT_THAT(Ids(*tokenizer, "<tool>", Specials::kAsText), ElementsAre(261)) << "it is added, but not special";
  EXPECT_EQ(tokenizer->TokenId("<|end|>"), 260);
  EXPECT_EQ(tokenizer->TokenId("Ġw"), 259);
  EXPECT_EQ(tokenizer->TokenId("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->vocab(), 262);
}

TEST_F(TokenizerTest, NoMergeMakesASpecialTokenOfText) {
  const auto tokenizer = MustLoad(CharacterJson());
  EXPECT_THAT(Ids(*tokenizer, "<s>", Specials::kAsText), ElementsAre(4, 13, 12));
  EXPECT_THAT(Ids(*tokenizer, "<s>"), ElementsAre(1));
  const auto whole =
      MustLoad(With(With(ByteLevelJson(), "\"type\":\"BPE\",", "\"type\":\"BPE\",\"ignore_merges\":true,"),
                    "\"he\":256", "\"<|end|>\":260,\"he\":256"));
  for (const int32_t id : Ids(*whole, "<|end|>", Specials::kAsText)) EXPECT_NE(id, 260);
}

TEST_F(TokenizerTest, APieceThatIsATokenNeedsNoMergesWhereTheyAreIgnored) {
  const std::string without = With(ByteLevelJson(), R"(["he","ll"],)", "");
  EXPECT_THAT(Ids(*MustLoad(without), "hell"), ElementsAre(256, 257));
  const auto whole = MustLoad(With(without, "\"type\":\"BPE\",", "\"type\":\"BPE\",\"ignore_merges\":true,"));
  EXPECT_THAT(Ids(*whole, "hell"), ElementsAre(258));
}

TEST_F(TokenizerTest, BytesThatAreNotUtf8BecomeReplacementCharacters) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  const std::string replacement = "\xEF\xBF\xBD";
  // A cut-off character is one, an overlong form and a surrogate are one for each byte.
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, "a\xE2\x82z"), false), "a" + replacement + "z");
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, "\xC0\xAF"), false), replacement + replacement);
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, "\xED\xA0\x80"), false), replacement + replacement + replacement);
  EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, "\xF0\x9F\x98"), false), replacement);
}

TEST_F(TokenizerTest, DecodingGivesBackEveryText) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  for (const char* text : {"hello  world\n\t!", "Grüße, мир, 世界 👩‍💻", " leading", "trailing   ",
                           "'s don't 'S", "\r\n\xC2\x85"}) {
    EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text), false), text);
  }
  EXPECT_EQ(tokenizer->Decode({0xE2}, false), "\xE2") << "part of a character stays what it is";
  EXPECT_EQ(tokenizer->Decode({'a', 260, 261, 'b', 9999, -5}, false), "a<|end|><tool>b");
  EXPECT_EQ(tokenizer->Decode({'a', 260, 261, 'b'}, true), "a<tool>b");
}

TEST_F(TokenizerTest, SettingsThatOthersPutInItsPlaceMustSayTheSame) {
  const auto load = [&](const std::string& json, const std::string& config) {
    Write("tokenizer_config.json", config);
    return Load(json).status();
  };
  for (const char* same :
       {"{}", "no JSON", R"({"do_lower_case": true, "strip_accents": null})", R"({"do_lower_case": null})",
        R"({"tokenize_chinese_chars": true, "strip_accents": true, "add_prefix_space": true})",
        R"({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false})"}) {
    EXPECT_OK(load(WordPieceJson(), same)) << same;
  }
  const auto refused = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, "tokenizer.json: " + what);
  };
  EXPECT_THAT(load(WordPieceJson(), R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false})"),
              refused("normalizer.lowercase: true, but the tokenizer_config.json beside it has do_lower_case: false"));
  EXPECT_THAT(load(WordPieceJson(), R"({"strip_accents": false})"), refused("normalizer.strip_accents: true, but"));
  EXPECT_THAT(load(WordPieceJson(), R"({"tokenize_chinese_chars": false})"),
              refused("normalizer.handle_chinese_chars:"));
  const std::string cased = With(With(WordPieceJson(), "\"lowercase\":true", "\"lowercase\":false"),
                                 "\"strip_accents\":null", "\"strip_accents\":true");
  EXPECT_OK(load(cased, R"({"do_lower_case": false})"));
  EXPECT_THAT(load(cased, R"({"strip_accents": null})"), refused("normalizer.strip_accents: true, but the"));

  EXPECT_OK(load(ByteLevelJson(), R"({"add_prefix_space": false, "do_lower_case": true})"));
  EXPECT_THAT(load(ByteLevelJson(), R"({"add_prefix_space": true})"),
              refused("pre_tokenizer.add_prefix_space: false, but the tokenizer_config.json beside it has "
                      "add_prefix_space: true"));
}

TEST_F(TokenizerTest, APointerOfGitLfsIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    EXPECT_THAT(LoadTokenizer(Write(name, pointer)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, std::string(name) + ": is a pointer of Git LFS"));
  }
}

TEST_F(TokenizerTest, CharactersFallBackToBytesThenToOneUnknown) {
  const auto tokenizer = MustLoad(CharacterJson());
  EXPECT_THAT(Ids(*tokenizer, "ab ab"), ElementsAre(9, 9)) << "of two ways to the same, the earlier merge";
  EXPECT_THAT(Ids(*tokenizer, "é"), ElementsAre(4, 2, 3));
  EXPECT_THAT(Ids(*tokenizer, "xyab"), ElementsAre(4, 0, 8)) << "neighbours are fused";
  EXPECT_EQ(tokenizer->Decode({9, 9, 4, 2, 3}, false), "ab ab é");
  const auto each = MustLoad(With(CharacterJson(), "\"fuse_unk\":true", "\"fuse_unk\":false"));
  EXPECT_THAT(Ids(*each, "xyab"), ElementsAre(4, 0, 0, 8));
}

// "a▁" is a merge that reaches over a space, so that words must not be cut out of the piece.
TEST_F(TokenizerTest, AMergeMayReachOverASpace) {
  const auto tokenizer =
      MustLoad(With(With(CharacterJson(), "\"<s\":13", "\"<s\":13,\"b▁\":14"), "\"▁ a\"", "\"b ▁\",\"▁ a\""));
  EXPECT_THAT(Ids(*tokenizer, "ab ab"), ElementsAre(7, 14, 8));
}

TEST_F(TokenizerTest, AddedTokensTakeSpacesOrStandAlone) {
  const auto with = [&](const std::string& flags) {
    return MustLoad(With(
        ByteLevelJson(),
        R"("content":"<tool>","special":false,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false)",
        R"("content":"in","special":false,"normalized":false,)" + flags));
  };
  EXPECT_THAT(Ids(*with("\"lstrip\":true"), "a \t in b"), ElementsAre('a', 261, ' ', 'b'));
  EXPECT_THAT(Ids(*with("\"rstrip\":true"), "a in \xE2\x80\xA8 in"), ElementsAre('a', ' ', 261, 261));
  EXPECT_THAT(Ids(*with("\"single_word\":true"), "in bin in, \xC3\xA9in"),
              ElementsAre(261, ' ', 'b', 'i', 'n', ' ', 261, ',', ' ', 0xC3, 0xA9, 'i', 'n'));
}

// As Hugging Face's own: white space that is no token behind the last one found is text, also where a token took it.
TEST_F(TokenizerTest, ATokenIsFoundInTheSpacesThatTheOneBeforeItTook) {
  const auto tokenizer = MustLoad(With(
      With(ByteLevelJson(), R"("content":"<tool>","special":false,"normalized":false,"lstrip":false,"rstrip":false)",
           R"("content":"<ab>","special":false,"normalized":false,"lstrip":false,"rstrip":true)"),
      "\"added_tokens\":[",
      R"("added_tokens":[{"id":262,"content":" <m>","special":true},{"id":263,"content":"\n","special":true},
         {"id":264,"content":"<l>","special":true,"lstrip":true},)"));
  EXPECT_THAT(Ids(*tokenizer, "<ab> <m>A"), ElementsAre(261, 262, 'A'));
  EXPECT_THAT(Ids(*tokenizer, "<ab> \n <m>A"), ElementsAre(261, 263, 262, 'A'));
  EXPECT_THAT(Ids(*tokenizer, "<ab>\n  A"), ElementsAre(261, 263, ' ', ' ', 'A'));
  EXPECT_THAT(Ids(*tokenizer, "<ab>  <l>A"), ElementsAre(261, 264, 'A'));
}

TEST_F(TokenizerTest, TheLongestAddedTokenIsFound) {
  const auto tokenizer =
      MustLoad(With(ByteLevelJson(), "\"added_tokens\":[",
                    R"("added_tokens":[{"id":262,"content":"<|end|>>","special":true,"normalized":false},)"));
  EXPECT_THAT(Ids(*tokenizer, "<|end|>><|end|>"), ElementsAre(262, 260));
}

TEST_F(TokenizerTest, ANormalizedTokenIsLookedForInTheNormalizedText) {
  const auto tokenizer =
      MustLoad(With(With(ByteLevelJson(), "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}"),
                    R"("content":"<tool>","special":false,"normalized":false)",
                    R"("content":"<Tool>","special":false,"normalized":true)"));
  EXPECT_THAT(Ids(*tokenizer, "A<TOOL>"), ElementsAre('a', 261));
  EXPECT_THAT(Ids(*tokenizer, "<|END|>"), ElementsAre('<', '|', 'e', 'n', 'd', '|', '>'));
}

TEST_F(TokenizerTest, WordsAreMatchedPieceByPiece) {
  const auto tokenizer = MustLoad(WordPieceJson());
  EXPECT_THAT(Ids(*tokenizer, "UNaff un!"), ElementsAre(2, 3, 2, 5));
  EXPECT_THAT(Ids(*tokenizer, "unx un中un"), ElementsAre(0, 2, 9, 2)) << "unknown as a whole; ideographs are words";
  EXPECT_THAT(Ids(*tokenizer, "unaffable"), ElementsAre(0)) << "longer than 6 characters";
  EXPECT_THAT(Ids(*tokenizer, "Caf\xC3\xA9 cafe\xCC\x81"), ElementsAre(10, 10));
  EXPECT_THAT(Ids(*tokenizer, "[SEP]"), ElementsAre(1));
  EXPECT_THAT(Ids(*tokenizer, "[SEP]", Specials::kAsText), ElementsAre(6, 8, 7));
  EXPECT_EQ(tokenizer->Decode({2, 3, 4, 5, 1}, true), "unaffable!");
}

TEST_F(TokenizerTest, PiecesAreCutAsThePatternSays) {
  const auto cut = [&](const std::string& behavior, const std::string& text) {
    const auto tokenizer = MustLoad(With(
        ByteLevelJson(),
        R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})",
        absl::StrCat(
            R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"e"},"behavior":")",
            behavior, R"(","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})")));
    return Ids(*tokenizer, text);
  };
  EXPECT_THAT(cut("Removed", "heell"), ElementsAre('h', 257));
  EXPECT_THAT(cut("Isolated", "hell"), ElementsAre('h', 'e', 257));
  EXPECT_THAT(cut("MergedWithPrevious", "hell"), ElementsAre(256, 257));
  EXPECT_THAT(cut("MergedWithNext", "hell"), ElementsAre('h', 'e', 257));
  EXPECT_THAT(cut("Contiguous", "heell"), ElementsAre('h', 'e', 'e', 257));
}

// Digits by threes from the right, and a pattern that matches nothing wide nearly everywhere; as Hugging Face's Rust has it.
TEST_F(TokenizerTest, AMatchOfNothingCutsToo) {
  const auto cut = [&](const std::string& regex, const std::string& behavior, const std::string& text) {
    const auto tokenizer = MustLoad(
        With(ByteLevelJson(),
             R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})",
             absl::StrCat(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")",
                          regex, R"("},"behavior":")", behavior,
                          R"(","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})")));
    return Ids(*tokenizer, text);
  };
  for (const char* behavior : {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    EXPECT_THAT(cut(R"((?=(?:l){2}(?!l)))", behavior, "hell"), ElementsAre(256, 257)) << behavior;
    EXPECT_THAT(cut("(?=e)", behavior, "hell"), ElementsAre('h', 'e', 257)) << behavior;
  }
  EXPECT_THAT(cut("l*", "Isolated", "hell"), ElementsAre('h', 'e', 257));
}

TEST_F(TokenizerTest, MetaspacePrependsToTheFirstPieceOnly) {
  const auto tokenizer =
      MustLoad(R"({"version":"1.0","added_tokens":[{"id":0,"content":"<s>","special":true,"normalized":false}],
      "pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true},
      "decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},
      "model":{"type":"BPE","vocab":{"<s>":0,"▁":1,"a":2,"▁a":3},"merges":["▁ a"]}})");
  EXPECT_THAT(Ids(*tokenizer, "a a<s>a"), ElementsAre(3, 3, 0, 2));
  EXPECT_THAT(Ids(*tokenizer, "<s>a"), ElementsAre(0, 2));
  EXPECT_EQ(tokenizer->Decode({3, 3}, false), "a a");
}

TEST_F(TokenizerTest, WhatWasAddedToTheVocabularyIsNoPieceOfTheModels) {
  const auto words = MustLoad(R"({"version":"1.0",
      "added_tokens":[{"id":4,"content":"co","single_word":true},{"id":1,"content":"un"}],
      "pre_tokenizer":{"type":"Whitespace"},
      "model":{"type":"WordPiece","unk_token":"?","vocab":{"?":0,"un":1,"##s":2,"##un":3}}})");
  EXPECT_THAT(Ids(*words, "co"), ElementsAre(4));
  EXPECT_THAT(Ids(*words, "cos"), ElementsAre(0));
  const auto characters = MustLoad(R"({"version":"1.0","added_tokens":[{"id":3,"content":"é","single_word":true}],
      "pre_tokenizer":{"type":"Whitespace"},
      "model":{"type":"BPE","unk_token":"?","vocab":{"?":0,"a":1,"b":2},"merges":[]}})");
  EXPECT_THAT(Ids(*characters, "é aéb"), ElementsAre(3, 1, 0, 2));
}

TEST_F(TokenizerTest, NormalFormsAreMade) {
  const auto tokenizer = MustLoad(With(ByteLevelJson(), "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}"));
  EXPECT_THAT(Ids(*tokenizer, "e\xCC\x81"), ElementsAre(0xC3, 0xA9));
  const auto folded = MustLoad(With(ByteLevelJson(), "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}"));
  EXPECT_THAT(Ids(*folded, "\xEF\xAC\x81"), ElementsAre('f', 'i'));
}

TEST_F(TokenizerTest, WhatIsNotSupportedIsRefusedByItsKey) {
  const std::string good = ByteLevelJson();
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& words) {
    EXPECT_THAT(Load(With(good, from, to)), StatusIs(absl::StatusCode::kInvalidArgument, words)) << to;
  };
  refused("\"version\":\"1.0\"", "\"version\":\"2.0\"", "tokenizer.json: version: \"2.0\", must be \"1.0\"");
  refused("\"version\"", "\"extra\":1,\"version\"", "extra: this key is not supported");
  refused("\"normalizer\":null", "\"normalizer\":{\"type\":\"Nmt\"}", "normalizer.type: \"Nmt\", must be NFC");
  refused("\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\",\"x\":1}", "normalizer.x");
  refused("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type");
  refused("\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.1", "model.dropout");
  refused("\"type\":\"BPE\"", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"", "model.end_of_word_suffix");
  refused("\"type\":\"BPE\"", "\"type\":\"BPE\",\"unk_token\":\"?!\"", "model.unk_token");
  refused("\"h e\"", "\"h  e\"", "model.merges[0]");
  refused("\"h e\"", "\"h x\"", "merges[0]: \"hx\" is not in vocab");
  refused("\"h e\"", "[\"h\"]", "model.merges[0]");
  refused("\"he\":256", "\"he\":-1", "model.vocab: the id of \"he\"");
  refused("\"he\":256", "\"he\":257", "id 257 is of two tokens");
  refused("\"id\":261", "\"id\":260", "added_tokens[1]");
  refused("\"id\":261", "\"id\":99999999999", "added_tokens[1].id");
  refused("\"content\":\"<tool>\"", "\"content\":\"\"", "added_tokens[1].content");
  refused("\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"Other\"",
          "post_processor.type");
  refused("\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"CTC\"}", "decoder.type");
  refused("\"use_regex\":true}", "\"use_regex\":1}", "pre_tokenizer.use_regex");
  EXPECT_THAT(Load("{"), StatusIs(absl::StatusCode::kInvalidArgument, "not valid JSON"));
  EXPECT_THAT(Load("{}"), StatusIs(absl::StatusCode::kInvalidArgument, "model: missing"));
  EXPECT_THAT(Load("[]"), StatusIs(absl::StatusCode::kInvalidArgument, "must be an object"));
}

TEST_F(TokenizerTest, AFolderIsReadByTheNamesOfItsFiles) {
  EXPECT_THAT(LoadTokenizer(folder_.path()), StatusIs(absl::StatusCode::kNotFound, "tokenizer.json"));
  EXPECT_THAT(LoadTokenizer(folder_.path() + "/none.json"), StatusIs(absl::StatusCode::kNotFound, "none.json"));
  const std::string json = ByteLevelJson();
  Write("tokenizer.json", json);
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(folder_.path()));
  EXPECT_EQ(tokenizer->fingerprint(),
            Sha256Hex(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(json.data()), json.size())));
}

TEST_F(TokenizerTest, ASentencePieceModelIsReadAndItsFieldsAreChecked) {
  const std::string good = SentencePieceModel();
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(Write("tokenizer.model", good)));
  EXPECT_EQ(tokenizer->vocab(), 7);
  EXPECT_THAT(Ids(*tokenizer, "ab  ab"), ElementsAre(6, 6)) << "a space in front, and two are one";
  EXPECT_THAT(Ids(*tokenizer, "xya"), ElementsAre(3, 0, 4)) << "unknown neighbours are one";
  EXPECT_THAT(Ids(*tokenizer, "a<s>b"), ElementsAre(3, 4, 1, 3, 5)) << "each part is a text of its own";
  EXPECT_THAT(Ids(*tokenizer, "<s>", Specials::kAsText), ElementsAre(3, 0));
  EXPECT_EQ(tokenizer->Decode({6, 6}, false), "ab ab");
  EXPECT_EQ(tokenizer->Decode({1, 6, 2}, false), "<s>ab</s>");
  EXPECT_EQ(tokenizer->Decode({1, 6, 2}, true), "ab");
  EXPECT_EQ(tokenizer->TokenId("</s>"), 2);

  const auto load = [&](const std::string& bytes) { return LoadTokenizer(Write("tokenizer.model", bytes)); };
  using absl::StatusCode;
  EXPECT_THAT(load(good.substr(0, good.size() - 1)), StatusIs(StatusCode::kInvalidArgument, "tokenizer.model: byte "));
  EXPECT_THAT(load("\xFF\xFF"), StatusIs(StatusCode::kInvalidArgument, "byte 2"));
  EXPECT_THAT(load(""), StatusIs(StatusCode::kInvalidArgument, "pieces: none is the unknown one"));
  EXPECT_THAT(load(good + std::string("\x0A\x03\x0A\x01"
                                      "a",
                                      5)),
              StatusIs(StatusCode::kInvalidArgument, "pieces[7].piece: \"a\" again"));
  EXPECT_THAT(load(good + std::string("\x12\x02\x18\x03", 4)),
              StatusIs(StatusCode::kInvalidArgument, "trainer_spec.model_type: 3"));
  EXPECT_THAT(load(good + std::string("\x1A\x05\x12\x03"
                                      "abc",
                                      7)),
              StatusIs(StatusCode::kInvalidArgument, "normalizer_spec.precompiled_charsmap"));
}

TEST_F(TokenizerTest, AddedTokensBesideASentencePieceModelAreSpecialOnes) {
  const std::string model = SentencePieceModel();
  ASSERT_OK_AND_ASSIGN(const auto alone, LoadTokenizer(Write("tokenizer.model", model)));
  Write("added_tokens.json", R"({"<|im_end|>": 8, "</s>": 2, "<|im_start|>": 7})");
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(folder_.path()));
  EXPECT_EQ(tokenizer->vocab(), 9);
  EXPECT_EQ(tokenizer->TokenId("<|im_end|>"), 8);
  EXPECT_THAT(Ids(*tokenizer, "<|im_start|>ab<|im_end|>"), ElementsAre(7, 6, 8));
  EXPECT_EQ(Ids(*tokenizer, "<|im_end|>", Specials::kAsText), Ids(*alone, "<|im_end|>", Specials::kAsText));
  EXPECT_EQ(tokenizer->Decode({7, 6, 8}, false), "<|im_start|>ab<|im_end|>");
  EXPECT_EQ(tokenizer->Decode({7, 6, 8}, true), "ab");
  EXPECT_TRUE(tokenizer->IsSpecial(8));
  EXPECT_FALSE(tokenizer->IsSpecial(6));
  EXPECT_EQ(tokenizer->CountSpecials("<s>ab<|im_end|>"), 2);
  EXPECT_NE(tokenizer->fingerprint(), alone->fingerprint());

  using absl::StatusCode;
  Write("added_tokens.json", R"({"<x>": 3})");
  EXPECT_THAT(LoadTokenizer(folder_.path()),
              StatusIs(StatusCode::kInvalidArgument, "added_tokens.json: <x>: 3, must be an id from 7 on"));
  Write("added_tokens.json", R"({"<x>": 7, "<y>": 7})");
  EXPECT_THAT(LoadTokenizer(folder_.path()), StatusIs(StatusCode::kInvalidArgument, "id 7 is of two tokens"));
  Write("added_tokens.json", "[]");
  EXPECT_THAT(LoadTokenizer(folder_.path()), StatusIs(StatusCode::kInvalidArgument, "added_tokens.json: [], must be"));
}

TEST_F(TokenizerTest, SpecialTokensAreKnownByIdAndCountedInText) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  EXPECT_TRUE(tokenizer->IsSpecial(260));
  EXPECT_FALSE(tokenizer->IsSpecial(261)) << "it is added, but not special";
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_FALSE(tokenizer->IsSpecial(1000));
  EXPECT_EQ(tokenizer->CountSpecials("a<|end|><tool><|end|>"), 2);
}

TEST_F(TokenizerTest, PatternsThatEnginesReadInDifferentWaysAreRefused) {
  for (const char* pattern :
       {"\\\\h", "^a", "a$", "[a[b]]", "[a&&b]", "a{1,3}+", "\\\\bx", "(a)\\\\1", "(?<n>a)", "a{,3}", "(", "[z-a]"}) {
    EXPECT_THAT(Load(With(ByteLevelJson(), "\"normalizer\":null",
                          absl::StrCat(R"("normalizer":{"type":"Replace","pattern":{"Regex":")", pattern,
                                       R"("},"content":""})"))),
                StatusIs(absl::StatusCode::kInvalidArgument, "normalizer.pattern: pattern, byte"))
        << pattern;
  }
}

TEST_F(TokenizerTest, ThreadsShareOne) {
  const auto tokenizer = MustLoad(ByteLevelJson());
  const std::vector<int32_t> wanted = Ids(*tokenizer, "hello world");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(Ids(*tokenizer, "hello world"), wanted);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace eps
