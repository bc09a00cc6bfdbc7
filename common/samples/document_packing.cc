#include "common/samples/document_packing.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/status_macros.h"

namespace eps {
namespace {

// Gives each piece its sample.
class Packer {
 public:
  explicit Packer(const DocumentPacking::Options& options) : options_(options) {}

  int64_t Place(int64_t num_rows) {
    if (!options_.packs) return num_samples_++;
    const auto best = BestFit(num_rows);
    if (best == open_.end()) {
      // The fullest is the one least likely to take another piece.
      if (open_.size() == static_cast<size_t>(DocumentPacking::kOpenSamples)) open_.erase(Fullest());
      open_.push_back({num_samples_, options_.context - num_rows});
      return num_samples_++;
    }
    best->room -= num_rows;
    const int64_t sample = best->sample;
    if (best->room == 0) open_.erase(best);
    return sample;
  }

  int64_t num_samples() const { return num_samples_; }

 private:
  struct Open {
    int64_t sample = 0;
    int64_t room = 0;
  };
  std::vector<Open>::iterator BestFit(int64_t num_rows) {
    auto best = open_.end();
    for (auto at = open_.begin(); at != open_.end(); ++at) {
      if (at->room >= num_rows && (best == open_.end() || at->room < best->room)) best = at;
    }
    return best;
  }
  std::vector<Open>::iterator Fullest() {
    return std::min_element(open_.begin(), open_.end(), [](const Open& a, const Open& b) { return a.room < b.room; });
  }

  const DocumentPacking::Options options_;
  std::vector<Open> open_;  // in the order in which they were begun
  int64_t num_samples_ = 0;
};

}  // namespace

DocumentPacking::DocumentPacking(absl::Span<const int64_t> rows_of_documents, const Options& options) {
  EPS_CHECK(options.context >= 1);
  Packer packer(options);
  std::vector<DocumentPiece> pieces;
  std::vector<int64_t> samples;  // of each piece
  for (size_t d = 0; d < rows_of_documents.size(); ++d) {
    const int64_t rows = rows_of_documents[d];
    const bool ends_early = !options.may_be_cut && rows > options.context;
    const int64_t end = ends_early ? options.context : rows;
    const size_t num_before = pieces.size();
    for (int64_t first = 0; first < end; first += options.context) {
      const DocumentPiece piece{static_cast<int64_t>(d), first, std::min(options.context, end - first)};
      if (options.is_wanted != nullptr && !options.is_wanted(piece)) continue;
      pieces.push_back(piece);
      samples.push_back(packer.Place(piece.num_rows));
      num_rows_ += piece.num_rows;
    }
    if (ends_early) num_left_out_ += rows - end;
    num_ended_early_ += ends_early ? 1 : 0;
    num_unwanted_ += rows > 0 && pieces.size() == num_before ? 1 : 0;
  }
  begins_.assign(static_cast<size_t>(packer.num_samples()) + 1, 0);
  for (const int64_t sample : samples) ++begins_[static_cast<size_t>(sample) + 1];
  for (size_t s = 1; s < begins_.size(); ++s) begins_[s] += begins_[s - 1];
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  pieces_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces_[static_cast<size_t>(next[static_cast<size_t>(samples[i])]++)] = pieces[i];
  }
}

absl::Span<const DocumentPiece> DocumentPacking::pieces(int64_t sample) const {
  const auto begin = static_cast<size_t>(begins_[static_cast<size_t>(sample)]);
  const auto end = static_cast<size_t>(begins_[static_cast<size_t>(sample) + 1]);
  return absl::MakeConstSpan(pieces_).subspan(begin, end - begin);
}

}  // namespace eps
