#include "gpu_worker/profile/kept_profile.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/control_groups.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/spec/vector_width.h"
#include "gpu_worker/plan/step_costs.h"
#include "gpu_worker/profile/profile_file.h"

namespace eps::worker {
namespace {

constexpr size_t kMostLayers = 16 * kLayerKinds.size();  // of so many runs

// $XDG_CACHE_HOME, which counts only if it is absolute (XDG Base Directory Specification), or ~/.cache; "" without a
// home.
std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return cache;
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? absl::StrCat(home, "/.cache") : "";
}

// Letters and digits; of anything else between them one underscore.
std::string AsFileName(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  if (!name.empty() && name.back() == '_') name.pop_back();
  return name.empty() ? "processor" : name;
}

}  // namespace

bool AddLayersOf(const Profile& earlier, Profile& profile) {
  if (earlier.hardware != profile.hardware || earlier.threads != profile.threads) return false;
  const size_t measured = profile.layers.size();
  for (const LayerTimes& times : earlier.layers) {
    if (profile.layers.size() >= kMostLayers) break;
    const bool is_there = std::any_of(
        profile.layers.begin(), profile.layers.begin() + static_cast<ptrdiff_t>(measured),
        [&](const LayerTimes& newer) {
          const bool is_whole = newer.backward_seconds > 0 || times.backward_seconds == 0;  // it was frozen, else
          return newer.kind == times.kind && is_whole && HaveSameTimes(times.kind, newer.shape, times.shape);
        });
    if (!is_there) profile.layers.push_back(times);
  }
  return profile.layers.size() > measured;
}

std::string KeptProfilePath(const std::string& device, int threads, const std::string& vectors) {
  const std::string folder = CacheFolder();
  if (folder.empty()) return "";
  const std::string measured = device == "cuda" ? "cuda:0" : device;  // the GPU that `--device cuda` measures
  return absl::StrCat(folder, "/eps/profiles/", AsFileName(ProcessorName()), "-", UsableCores(), "-",
                      AsFileName(measured), "-", threads, vectors == kWidestVectors ? "" : absl::StrCat("-", vectors),
                      ".json");
}

std::string ChooseProfile(const std::string& told, const std::string& device, int threads, const std::string& vectors) {
  if (!told.empty()) return told;
  const std::string kept = KeptProfilePath(device, threads, vectors);
  return !kept.empty() && LoadProfile(kept, device).ok() ? kept : kNominalProfile;
}

absl::StatusOr<Profile> LoadProfile(const std::string& chosen, const std::string& device) {
  if (chosen == kNominalProfile) return NominalProfile(device);
  EPS_ASSIGN_OR_RETURN(Profile profile, ReadProfile(chosen));
  const auto kind = [](const std::string& name) { return name.substr(0, name.find(':')); };
  if (kind(profile.device) != kind(device)) {
    return absl::InvalidArgumentError(
        absl::StrCat(chosen, ": device: \"", profile.device, "\", must be of the kind that is planned for, ", device));
  }
  return profile;
}

}  // namespace eps::worker
