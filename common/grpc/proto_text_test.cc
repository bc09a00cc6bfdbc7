#include "common/grpc/proto_text.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ProtoTextTest, WhatIsNotUtf8IsReplaced) {
  EXPECT_EQ(ProtoText("Gr\xFC\xDF"
                      "e"),
            "Gr\uFFFD\uFFFDe");
  EXPECT_EQ(ProtoText("Gr\u00FC\u00DFe"), "Gr\u00FC\u00DFe");
}

TEST(ProtoTextTest, ItIsCutBetweenCharacters) {
  const char* text = "a\u00FC\u20AC";  // of one, two and three bytes
  EXPECT_EQ(ProtoText(text, 6), text);
  for (const size_t max_bytes : {3, 4, 5}) EXPECT_EQ(ProtoText(text, max_bytes), "a\u00FC");
  for (const size_t max_bytes : {1, 2}) EXPECT_EQ(ProtoText(text, max_bytes), "a");
  EXPECT_EQ(ProtoText(text, 0), "");
}

}  // namespace
}  // namespace eps
