#ifndef EPS_COMMON_CORPUS_CORPUS_SOURCES_H_
#define EPS_COMMON_CORPUS_CORPUS_SOURCES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/corpus/jsonl.h"
#include "common/corpus/line_reader.h"
#include "common/corpus/text_piece_reader.h"
#include "common/corpus/tsv.h"

namespace eps {

enum class CorpusFormat {
  kAuto,   // by the name, common/corpus/data_form.h; refused where the first bytes are those of something else
  kText,   // plain text
  kJsonl,  // common/corpus/jsonl.h
  kTsv,    // common/corpus/tsv.h
};

// What documents are.
enum class CorpusContent {
  kText,
  kConversations,
  kClassified,
  kPreferences,  // pairs of answers: two conversations each
};

struct CorpusSource {
  std::string path;
  CorpusFormat format = CorpusFormat::kText;  // not kAuto
  JsonlKind kind = JsonlKind::kText;          // of JSONL
  std::optional<TsvTable> table;              // of TSV
  int64_t num_bytes = 0;
};

struct CorpusSources {
  std::vector<CorpusSource> files;
  CorpusContent content = CorpusContent::kText;
  LabelClasses classes;  // of kClassified: of all files together
  int64_t num_bytes = 0;
};

// What the files are. Reads the first line of JSONL, and all of TSV: the classes have to be known before the first row.
// Errors: INVALID_ARGUMENT naming file and place; a file that is not what its name says; files whose documents are of
//         different content · CANCELLED once `stop` is true · file errors
// skips_bad_lines: of JSONL, the first line is the first one that shows what it is; of TSV, labels are of good rows.
// pairs: FindJsonlKind's.
absl::StatusOr<CorpusSources> InspectSources(const std::vector<std::string>& paths, CorpusFormat format,
                                             const TsvColumns& columns, const std::atomic<bool>& stop,
                                             bool skips_bad_lines = false, std::optional<bool> pairs = std::nullopt);

// A line, or a piece of a document of text, of a batch.
struct CorpusUnit {
  size_t begin = 0;  // in the batch's bytes
  size_t num_bytes = 0;
  int64_t number = 0;  // of the line; 0: it is a piece of text
  int64_t offset_bytes = 0;
  bool starts_document = true;
  bool ends_document = true;
  std::string refused;  // why the line, which is not here, cannot be taken
};

// What one thread encodes at a time.
struct CorpusBatch {
  size_t file = 0;  // its index
  std::string bytes;
  std::vector<CorpusUnit> units;
  int64_t source_bytes = 0;  // that were read for it

  absl::string_view text(const CorpusUnit& unit) const {
    return absl::string_view(bytes).substr(unit.begin, unit.num_bytes);
  }
};

// Cuts the files, in order, into batches that do not depend on who encodes them.
//
// Threads: one at a time. `sources` must outlive it.
class CorpusReader {
 public:
  CorpusReader(const CorpusSources& sources, std::optional<std::string> separator)
      : sources_(sources), separator_(std::move(separator)) {}

  // False at the end. Errors: INVALID_ARGUMENT naming file and place · file errors
  absl::StatusOr<bool> Next(CorpusBatch& batch);

 private:
  absl::Status OpenFile();
  absl::StatusOr<bool> NextLines(CorpusBatch& batch);
  absl::StatusOr<bool> NextPieces(CorpusBatch& batch);

  const CorpusSources& sources_;
  const std::optional<std::string> separator_;
  size_t file_ = 0;
  int64_t taken_bytes_ = 0;            // of it, by earlier batches
  std::unique_ptr<LineReader> lines_;  // of files_[file_], one of the two
  std::unique_ptr<TextPieceReader> pieces_;
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CORPUS_SOURCES_H_
