#ifndef EPS_CLI_PROGRESS_H_
#define EPS_CLI_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/monotonic_clock.h"
#include "proto/control.pb.h"

namespace eps::cli {

// "1:05:09", "2:05", from a day on "14 d 6 h"; "-:--" when unknown (negative).
std::string FormatEta(double seconds);

// Three digits that matter: "0.012 s", "12.3 s"; from two minutes on the two largest units, "2 min 5 s", "14 d 6 h".
std::string FormatSeconds(double seconds);

// "1.23 TFLOP/s", of the model (StatusReply.model_flops_per_second).
std::string FormatFlopRate(double flops_per_second);

// What StatusReply.tokens counts: "tokens", "counted tokens", "samples", "pairs".
std::string WhatIsCounted(const proto::StatusReply& status);

// What nobody has measured yet is a dash, and no number.
inline std::string Known(bool is_known, std::string text) { return is_known ? std::move(text) : "-"; }

// "[#######-------------]"
std::string ProgressBar(int64_t step, int64_t steps);

// Control characters (a checkpoint's path or a device's name may hold some) must not reach a terminal: "?" in their
// place.
std::string Printable(std::string text);

// One line of a run in progress, at most `width` characters:
//   [#######-------------]  35% step 105/300  loss 2.613  1640 tok/s  eta 2:05  dev 14.2 MiB of 16.0 MiB  waits pull 1%
// Where not all tokens of a step are counted, "12 counted tokens/s", and of a classifier "12 samples/s".
// Behind the step FormatLongStep, or "evaluating, 31%, 3.2 s"; behind the loss "  eval 2.701", of the newest evaluation.
// While the daemon starts "starting: reading the checkpoint, ...", and while it waits for workers FormatAwaitedWorkers.
// Where the line is too long, whole fields are left out.
std::string ProgressLine(const proto::StatusReply& status, int width);

// A state of a run as people say it: "waiting for workers".
std::string StateWords(absl::string_view state);

// Which workers the first step waits for, or that there is none: "1 of 3 expected are ready; begins with those in 41.0 s";
// "": it waits for none.
std::string FormatAwaitedWorkers(const proto::StatusReply& status);

// The evaluation that is going on: "after step 40: 31% of it, 3.200 s"; "": there is none.
std::string FormatEvaluating(const proto::StatusReply& status);

// The checkpoint that is being written: "step 12, 9.400 s"; "": there is none.
std::string FormatCheckpointWriting(const proto::StatusReply& status);
// How old the newest checkpoint is that this sitting wrote: "12.5 s ago, 3.0 MiB in 0.750 s"; "": it wrote none.
std::string FormatCheckpointAge(const proto::StatusReply& status);

// The first of the daemon's certificates that ends: "ends in 364 d 3 h", "ended 5 min 2 s ago"; "": it has none.
std::string FormatCertificateEnd(const proto::StatusReply& status);
// What is wrong with the daemon's keys, a sentence each: new ones that are not in use, and an end within two weeks.
std::vector<std::string> KeyWarnings(const proto::StatusReply& status);

// "0.250 s, ended 0.125 s ago"; before one is done in this sitting "none in this sitting, which began 7.700 s ago".
std::string FormatLastStep(const proto::StatusReply& status);

// How evenly the last step's tokens fell on experts: "busiest 2.50x of an even share (block 1, expert 17), 1.75x in the mean
// over blocks; 3 of 512 without a token"; "": there are none, or it is not known.
std::string FormatExpertLoad(const proto::StatusReply& status);

// "0.312 chosen, -0.421 rejected, margin 0.733".
std::string FormatRewards(double chosen, double rejected);
// Of the last step's pairs: "accuracy 0.8125; rewards 0.312 chosen, -0.421 rejected, margin 0.733"; "": there are none.
std::string FormatPairs(const proto::StatusReply& status);

// What a step's compute waited for, the shares of at least half a percent: "pull 1% version 3%"; "nothing".
std::string FormatWaits(const proto::StatusReply& status);

// How far a step is that takes long: "this step 65.0 s, 12 of 50 blobs done"; "": it has not yet taken ten seconds. Where
// no update may begin before the step's norm is known, and none has, "this step 65.0 s, gradients of 12 of 50 blobs are
// in, whose updates wait for their norm".
std::string FormatLongStep(const proto::StatusReply& status);

// What the step in progress has waited for too long: "compute, 65.0 s, of workers 2, 3"; "a worker, 65.0 s"; "": it does
// not.
// Of many workers the first eight.
std::string FormatStepWait(const proto::StatusReply& status);

// What a daemon does that is starting: "tokenizing books.txt, 120 MiB of 2.0 GiB, 35.1 s"; "": it is not, or has begun
// nothing that takes long.
std::string FormatStartWork(const proto::StatusReply& status);

// What became of the newest order of `eps resize`: "4 wanted, being started"; "the newest order, of 4,
// failed: WHY"; "": all is done.
std::string FormatStartOrder(const proto::StatusReply& status);

// Shows ProgressLine: on a terminal one line that is written over, elsewhere a line every few seconds.
//
// Threads: none of its own; one caller
class ProgressPrinter {
 public:
  // to: stdout, or stderr where stdout has something else to say.
  explicit ProgressPrinter(bool quiet, std::FILE* to = stdout, MonotonicClock clock = SteadyClock());
  void Show(const proto::StatusReply& status);
  // The same for something else than a run: `line` makes one of at most so many characters.
  // Whether it was shown: where there is no terminal, not so soon after the one before it.
  bool ShowLine(const std::function<std::string(int width)>& line);
  // The next line is shown however soon it comes.
  void ShowNext() { last_shown_ = -absl::InfiniteDuration(); }
  // Prints a line of its own, on a terminal in the place of the progress line, which Show prints anew below it. Nothing
  // when quiet.
  void Note(const std::string& text);
  // Leaves the last line standing.
  void Finish();

 private:
  const bool quiet_;
  std::FILE* const to_;
  const bool terminal_;
  const MonotonicClock clock_;
  bool line_open_ = false;
  std::string last_line_;  // where there is no terminal
  absl::Duration last_shown_ = -absl::InfiniteDuration();
};

}  // namespace eps::cli

#endif  // EPS_CLI_PROGRESS_H_
