#ifndef EPS_COMMON_TESTING_TEMP_DIR_H_
#define EPS_COMMON_TESTING_TEMP_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "gtest/gtest.h"

namespace eps {

// A fresh folder of a test's own, removed with everything in it at the end.
class TempDir {
 public:
  // gtest's folder ends in a slash.
  TempDir() : path_(::testing::TempDir() + "eps_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make a folder like " << path_;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace eps

#endif  // EPS_COMMON_TESTING_TEMP_DIR_H_
