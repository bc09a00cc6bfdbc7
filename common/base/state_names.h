#ifndef EPS_COMMON_BASE_STATE_NAMES_H_
#define EPS_COMMON_BASE_STATE_NAMES_H_

// The words for what a daemon is at and how a worker is: in status replies, metrics, health pages and summary.json, by
// which other programs go.

namespace eps::run_state {

inline constexpr char kStarting[] = "starting";
inline constexpr char kWaitingForWorkers[] = "waiting_for_workers";
inline constexpr char kTraining[] = "training";
inline constexpr char kFinishing[] = "finishing";
inline constexpr char kFinished[] = "finished";
inline constexpr char kFailed[] = "failed";
inline constexpr char kServing[] = "serving";

}  // namespace eps::run_state

namespace eps::worker_state {

inline constexpr char kAttaching[] = "attaching";  // not ready yet
inline constexpr char kIdle[] = "idle";
inline constexpr char kRunning[] = "running";
inline constexpr char kLeaving[] = "leaving";
inline constexpr char kLost[] = "lost";
inline constexpr char kLeft[] = "left";  // by itself, or as the run ended

}  // namespace eps::worker_state

#endif  // EPS_COMMON_BASE_STATE_NAMES_H_
