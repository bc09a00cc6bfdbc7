#ifndef EPS_GPU_WORKER_PROFILE_KEPT_PROFILE_H_
#define EPS_GPU_WORKER_PROFILE_KEPT_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/plan/profile.h"

namespace eps::worker {

// What --profile says for figures that nobody measured, also where a measured profile is kept.
inline constexpr char kNominalProfile[] = "nominal";

// Adds those layers of `earlier`, which has its newest ones first, that `profile` has not measured, if both are of the
// same hardware and threads; up to those of sixteen runs in all. Returns whether it added any.
bool AddLayersOf(const Profile& earlier, Profile& profile);

// Where `eps profile`, and `eps train` before a long run, keep what they measured last of a device with so many threads
// that compute, and where plans and workers look for it:
// $XDG_CACHE_HOME/eps/profiles/PROCESSOR-CORES-DEVICE-THREADS.json, with -VECTORS where these are not the processor's
// widest (vector_width.h), or below ~/.cache. The processor is part of the name, as one home may be on several
// machines; a GPU's model is not, and "cuda" is its first. "" where the environment names neither folder.
std::string KeptProfilePath(const std::string& device, int threads, const std::string& vectors);

// The file that plans are made from, or kNominalProfile; never "". `told` where it says something, else the kept one,
// if it is there and LoadProfile takes it: nobody named it, and so nobody is refused for it.
std::string ChooseProfile(const std::string& told, const std::string& device, int threads, const std::string& vectors);

// What ChooseProfile has chosen, for plans of `device`.
// Errors: ReadProfile's · INVALID_ARGUMENT of another kind of device
absl::StatusOr<Profile> LoadProfile(const std::string& chosen, const std::string& device);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_KEPT_PROFILE_H_
