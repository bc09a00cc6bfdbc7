#ifndef EPS_COMMON_BASE_EXIT_CODE_H_
#define EPS_COMMON_BASE_EXIT_CODE_H_

#include "absl/status/status.h"

namespace eps {

// Exit codes of every program; docs/operations.md has the same table.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;      // the run, or the system, failed
inline constexpr int kExitBadInput = 2;    // usage, config, input file or address
inline constexpr int kExitDoesNotFit = 3;  // the message names what would
// eps_server: the step in progress is lost, as a worker was; the newest checkpoint stands, and --resume goes on (EX_TEMPFAIL).
inline constexpr int kExitStepLost = 75;
inline constexpr int kExitSignal = 128;    // + its number: ended by a signal, after its checkpoint

// The exit code of a program that could not start because of `status`. What goes wrong after the start is kExitFailed.
inline int StartExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:  // this build has no such device
      return kExitBadInput;
    case absl::StatusCode::kResourceExhausted:
      return kExitDoesNotFit;
    default:
      return kExitFailed;
  }
}

// The exit code of a daemon whose run ended because of `status`.
inline int RunExitCode(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  return absl::IsAborted(status) ? kExitStepLost : kExitFailed;
}

// The exit code of a program that works for a daemon far away, and ended because of `status`: only what was typed is
// bad input. That something is not found, or not in the right state, is said of the daemon.
inline int WorkerExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:  // this build has no such device
      return kExitBadInput;
    case absl::StatusCode::kResourceExhausted:
      return kExitDoesNotFit;
    default:
      return kExitFailed;
  }
}

// RESOURCE_EXHAUSTED says to the user of a worker that its device's memory is too small (kExitDoesNotFit). What else ran
// out, the host's memory or files, is INTERNAL.
inline absl::Status NotOfTheDevice(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? absl::InternalError(status.message()) : status;
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_EXIT_CODE_H_
