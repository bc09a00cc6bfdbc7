#ifndef EPS_GPU_WORKER_PROFILE_PROFILE_FILE_H_
#define EPS_GPU_WORKER_PROFILE_PROFILE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/plan/profile.h"

namespace eps::worker {

// A profile as a JSON file that people can read, and edit to ask "what if". docs/planning.md has its fields.
std::string ProfileToJson(const Profile& profile);
// Errors: INVALID_ARGUMENT naming the field, what it is and what it must be
absl::StatusOr<Profile> ProfileFromJson(const std::string& text);

// Errors: ProfileFromJson's, and the system's, with the path in front
absl::StatusOr<Profile> ReadProfile(const std::string& path);
absl::Status WriteProfile(const std::string& path, const Profile& profile);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_PROFILE_FILE_H_
