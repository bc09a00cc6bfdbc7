#include "eps_server/service/without_folders.h"

#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(WithoutFoldersTest, OfAPathTheLastPartStays) {
  EXPECT_EQ(WithoutFolders("/data/a/model.safetensors: No space left on device", ""),
            "model.safetensors: No space left on device");
  EXPECT_EQ(WithoutFolders("cannot read \"/data/a/b\", (/c/d) or x=/e/f:\n/g/h", ""),
            "cannot read \"b\", (d) or x=f:\nh");
  EXPECT_EQ(WithoutFolders("\"/my data/a b/c d.txt\" ends", ""), "\"c d.txt\" ends");
  EXPECT_EQ(WithoutFolders("/data/", ""), "");
}

TEST(WithoutFoldersTest, WhatIsQuotedIsAPathWhereverItBegins) {
  EXPECT_EQ(WithoutFolders("cannot write \"secret/a merger/d.jsonl\": Not a directory", "runs/books"),
            "cannot write \"d.jsonl\": Not a directory");
  EXPECT_EQ(WithoutFolders("\"../a/b\" and 'c/d e/f', \"g\" or \"\", and/or \"h/i\"", ""),
            "\"b\" and 'f', \"g\" or \"\", and/or \"i\"");
  EXPECT_EQ(WithoutFolders("\"runs/books/checkpoints/step-7\"", "runs/books"), "\"step-7\"");
  EXPECT_EQ(WithoutFolders("the workers' 12 tokens/s aren't read/written", ""),
            "the workers' 12 tokens/s aren't read/written");
}

TEST(WithoutFoldersTest, TheRunsOwnFolderGoesHoweverItWasGiven) {
  EXPECT_EQ(WithoutFolders("my runs/books/checkpoints/step-7: gone", "my runs/books"), "checkpoints/step-7: gone");
  EXPECT_EQ(WithoutFolders("/data/books/checkpoints/step-7: gone", "/data/books"), "checkpoints/step-7: gone");
}

TEST(WithoutFoldersTest, OtherSlashesStay) {
  EXPECT_EQ(WithoutFolders("Input/output error, 12 tokens/s", ""), "Input/output error, 12 tokens/s");
  EXPECT_EQ(WithoutFolders("", "a"), "");
}

}  // namespace
}  // namespace eps::server
