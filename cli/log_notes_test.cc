#include "cli/log_notes.h"

#include <fstream>
#include <string>

#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LogNotesTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::app) << text << std::flush; }

  const TempDir dir_;
  const std::string path_ = dir_.File("log");
};

TEST_F(LogNotesTest, WarningsAndWhatTheDataAreAreShownOnceAndWithoutTheirTime) {
  Write("2026-01-01T00:00:00.000Z WARNING of_the_sitting_before a=1\n");
  const auto start = static_cast<std::streamoff>(std::ifstream(path_, std::ios::ate).tellg());
  LogNotes notes(path_, start);
  EXPECT_THAT(notes.Next(), IsEmpty());
  Write(
      "2026-01-01T00:00:01.000Z INFO data_documents path=a documents=3\n2026-01-01T00:00:01.000Z INFO doors tls=no\n");
  Write("2026-01-01T00:00:02.000Z WARNING documents_ended_early docu");
  EXPECT_THAT(notes.Next(), ElementsAre("eps_server: INFO data_documents path=a documents=3"));
  Write("ments=2\n");
  EXPECT_THAT(notes.Next(), ElementsAre("eps_server: WARNING documents_ended_early documents=2"));
  Write("2026-01-01T00:00:03.000Z INFO kept_source_taken gone=llama kept_in=out/source\n");
  EXPECT_THAT(notes.Next(), ElementsAre("eps_server: INFO kept_source_taken gone=llama kept_in=out/source"));
  // Who is asked to leave is said, and not that all leave when the run is over.
  Write(
      "2026-01-01T00:00:04.000Z INFO worker_drained worker=2\n2026-01-01T00:00:05.000Z INFO worker_left worker=2 "
      "step=7\n");
  EXPECT_THAT(notes.Next(), ElementsAre("eps_server: INFO worker_drained worker=2"));
  EXPECT_THAT(notes.Next(), IsEmpty());
}

TEST_F(LogNotesTest, ManyNotesAreCutAndTheRestIsInTheLog) {
  LogNotes before(path_, 0);
  Write("T INFO data_tokenized path=a\n");
  LogNotes notes(path_, 0);
  EXPECT_EQ(notes.Next().size(), 1u);
  for (int i = 0; i < 2 * LogNotes::kMostNotes; ++i) Write("T INFO worker_leaves worker=1\n");
  auto shown = notes.Next();
  ASSERT_EQ(shown.size(), static_cast<size_t>(LogNotes::kMostNotes));
  EXPECT_EQ(shown.back(), "eps: more lines like these are in " + path_);
  // Of these there are none yet.
  for (int i = 0; i < 2 * LogNotes::kMostNotes; ++i) Write("T WARNING again\n");
  shown = notes.Next();
  ASSERT_EQ(shown.size(), static_cast<size_t>(LogNotes::kMostNotes + 1));
  EXPECT_EQ(shown.back(), "eps: more warnings are in " + path_);
  EXPECT_THAT(before.Next(), IsEmpty()) << "there was no log when it was opened";
}

}  // namespace
}  // namespace eps::cli
