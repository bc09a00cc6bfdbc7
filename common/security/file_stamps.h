#ifndef EPS_COMMON_SECURITY_FILE_STAMPS_H_
#define EPS_COMMON_SECURITY_FILE_STAMPS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace eps {

// Whether files are others than before, without a look into them: written in place, another moved to their name, a link
// that leads elsewhere (as Kubernetes exchanges a secret's files), another mode or owner; gone, or back.
//
// Threads: one
class FileStamps {
 public:
  // From how they are now. Empty names stand for no file.
  explicit FileStamps(std::vector<std::string> files);

  // Whether any of them is another than at the last call (at the first: than it was when this was made).
  bool Changed();

 private:
  struct Stamp {
    int error = 0;  // errno, of a file that there is not; the rest is 0 then
    dev_t device = 0;
    ino_t inode = 0;
    mode_t mode = 0;
    uid_t owner = 0;
    off_t size = 0;
    int64_t modified_nanos = 0;
    int64_t changed_nanos = 0;  // with a link or a mode, too
    bool operator==(const Stamp& other) const;
  };

  std::vector<Stamp> Take() const;

  const std::vector<std::string> files_;
  std::vector<Stamp> stamps_;
};

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_FILE_STAMPS_H_
