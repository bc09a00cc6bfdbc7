#ifndef EPS_COMMON_BASE_NEW_FOLDER_H_
#define EPS_COMMON_BASE_NEW_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace eps {

// A folder, with its parents. One that Make has made goes again with this object, where it is empty and nobody said Keep; its
// parents stay.
class NewFolder {
 public:
  // One that is there is fine. Errors: MakeDirs'
  static absl::StatusOr<NewFolder> Make(const std::string& path);
  NewFolder() = default;
  ~NewFolder();
  NewFolder(NewFolder&& other) noexcept : made_(std::exchange(other.made_, "")) {}
  NewFolder& operator=(NewFolder&& other) noexcept {
    std::swap(made_, other.made_);
    return *this;
  }

  void Keep() { made_.clear(); }

 private:
  std::string made_;  // "": nothing is to go
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_NEW_FOLDER_H_
