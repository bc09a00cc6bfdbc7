#include "common/tokenizer/example_tokenizers.h"

#include <bit>
#include <cstdint>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace eps {

std::string ByteLevelJson() {
  std::string vocab;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    char spelling[16];
    std::snprintf(spelling, sizeof(spelling), "\\u%04x", itself ? byte : next++);
    absl::StrAppend(&vocab, "\"", spelling, "\":", byte, ",");
  }
  return absl::StrCat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[
      {"id":260,"content":"<|end|>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},
      {"id":261,"content":"<tool>","special":false,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false}],
      "normalizer":null,
      "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
      "post_processor":{"type":"ByteLevel","trim_offsets":true},"decoder":{"type":"ByteLevel"},
      "model":{"type":"BPE","vocab":{)",
                      vocab, R"("he":256,"ll":257,"hell":258,"Ġw":259},"merges":["h e","l l",["he","ll"],"Ġ w"]}})");
}

std::string CharacterJson() {
  return R"({"version":"1.0","added_tokens":[
      {"id":0,"content":"<unk>","special":true,"normalized":false},{"id":1,"content":"<s>","special":true,"normalized":false}],
      "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},
        {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
      "pre_tokenizer":null,"post_processor":null,
      "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
      "model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,
        "vocab":{"<unk>":0,"<s>":1,"<0xC3>":2,"<0xA9>":3,"▁":4,"a":5,"b":6,"▁a":7,"ab":8,"▁ab":9,"<":10,"s":11,">":12,"<s":13},
        "merges":["▁ a","a b","▁a b","▁ ab","< s","<s >"]}})";
}

std::string WordPieceJson() {
  return R"({"version":"1.0","added_tokens":[{"id":0,"content":"[UNK]","special":true,"normalized":false},
        {"id":1,"content":"[SEP]","special":true,"normalized":false}],
      "normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
      "pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,
      "decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
      "model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":6,
        "vocab":{"[UNK]":0,"[SEP]":1,"un":2,"##aff":3,"##able":4,"!":5,"[":6,"]":7,"sep":8,"中":9,"cafe":10}}})";
}

// Fields of Protocol Buffers: 1 {1 text, 2 score, 3 type}.
std::string SentencePieceModel() {
  struct Piece {
    std::string text;
    float score;
    int type;
  };
  const Piece pieces[] = {{"<unk>", 0, 2},
                          {"<s>", 0, 3},
                          {"</s>", 0, 3},
                          {"\xE2\x96\x81", -2, 1},
                          {"a", -3, 1},
                          {"b", -3, 1},
                          {"\xE2\x96\x81"
                           "ab",
                           -1, 1}};
  std::string model;
  for (const Piece& piece : pieces) {
    std::string message =
        absl::StrCat("\x0A", std::string(1, static_cast<char>(piece.text.size())), piece.text, "\x15");
    const auto bits = std::bit_cast<uint32_t>(piece.score);
    for (int shift = 0; shift < 32; shift += 8) message += static_cast<char>(bits >> shift);
    message += {'\x18', static_cast<char>(piece.type)};
    absl::StrAppend(&model, "\x0A", std::string(1, static_cast<char>(message.size())), message);
  }
  return model;
}

}  // namespace eps
