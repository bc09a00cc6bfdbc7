#ifndef EPS_COMMON_SAMPLES_SAMPLE_SOURCE_H_
#define EPS_COMMON_SAMPLES_SAMPLE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/long_work.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"

namespace eps {

inline constexpr int32_t kPaddingToken = 0;  // any would do: nobody else sees it, and it is not counted

// What becomes of a file's documents.
struct DocumentFigures {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t counted_tokens = 0;   // of those in the samples
  int64_t ended_early = 0;      // documents that are longer than a sample and end with it
  int64_t tokens_left_out = 0;  // of these
  int64_t left_out = 0;  // documents of which nothing that stands in a sample is counted; pairs that differ behind it
};

// LongWork's name for SampleSource::CheckIds.
inline std::string CheckingIdsOf(const DataConfig& data) {
  return absl::StrCat("checking the token ids of \"", data.path, "\"");
}

// A run's data as numbered samples of model.context tokens each, whatever the files' form, with the labels that its
// objective takes: the tokens behind, those that were masked, or a class.
//
// Threads: safe; fixed after construction.
class SampleSource {
 public:
  // Opens the files; `CheckIds` is left to the caller. Cost: a step for each document, and a look into the tokens of pairs
  // that are cut.
  // Errors: NOT_FOUND no such file · INVALID_ARGUMENT naming data's field, the file, and what it has and lacks: tokens,
  //         the index of its documents, a document with something to predict
  static absl::StatusOr<std::unique_ptr<SampleSource>> Open(const RunConfig& run);
  virtual ~SampleSource() = default;

  virtual int64_t num_samples() const = 0;  // at least 1
  // Behind what the batch's arrays have. place: of this use of the sample among all of the run, which nothing depends on
  // but which tokens are masked. Errors: as TokenFile::Read
  virtual absl::Status Append(int64_t sample, int64_t place, VnodeBatch& batch) const = 0;
  // That every id is below the vocabulary; reads all files where one may not be, of which `work` is told (null: nobody is).
  // Errors: as TokenFile::Read · CANCELLED by `work`
  virtual absl::Status CheckIds(LongWork* work) const = 0;
  // Whose content the samples depend on.
  virtual std::vector<std::string> files() const = 0;
  // Of next tokens and masked ones of documents that are seen alone; else nullopt. Cost: a step for each piece of a
  // document, and for every 8 labels where some are not counted.
  virtual std::optional<DocumentFigures> CountDocuments() const { return std::nullopt; }
};

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_SAMPLE_SOURCE_H_
