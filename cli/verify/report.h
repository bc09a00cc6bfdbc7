#ifndef EPS_CLI_VERIFY_REPORT_H_
#define EPS_CLI_VERIFY_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/verify/comparison.h"
#include "cli/verify/variants.h"

namespace eps::cli {

// What became of a variant.
struct VariantResult {
  enum class Outcome { kSame, kDifferent, kSkipped, kFailed };
  std::string name;
  bool is_baseline = false;
  Outcome outcome = Outcome::kSame;
  std::string why;        // kSkipped, kFailed
  Difference difference;  // kDifferent
  FirstDifference first;  // kDifferent
  int64_t steps = 0;      // compared; with the rest 0 where it did not run to its end
  size_t tensors = 0;
  double seconds = 0;  // of the steps
  int64_t tokens = 0;
};

// "same bits", "DIFFERS: step 1, gradient of ...", "skipped: ...", "FAILED: ..."; of the baseline "the baseline".
std::string ResultText(const VariantResult& result);

// {"same": true, "variants": [...], "kept": "DIR"}; docs/verify.md says its fields.
std::string VerifyJson(const std::vector<VariantResult>& results, bool same, const std::string& kept_folder);

// Shows the results on stdout as they come, a line each, or as JSON at the end; how far it is on stderr, on a terminal.
class VerifyPrinter {
 public:
  VerifyPrinter(const std::vector<Variant>& variants, bool json);
  void Progress(size_t index, int64_t step, int64_t steps);
  void Add(const VariantResult& result);
  void End(bool same, const std::string& kept_folder);
  // Ended without a verdict.
  void Interrupted() { ClearProgress(); }

 private:
  void ClearProgress();

  const bool json_;
  const bool colours_;   // stdout is a terminal
  const bool progress_;  // stderr is
  std::vector<std::string> names_;
  int name_width_ = 0;
  bool line_open_ = false;
  std::vector<VariantResult> results_;
};

}  // namespace eps::cli

#endif  // EPS_CLI_VERIFY_REPORT_H_
