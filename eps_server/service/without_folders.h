#ifndef EPS_SERVER_SERVICE_WITHOUT_FOLDERS_H_
#define EPS_SERVER_SERVICE_WITHOUT_FOLDERS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace eps::server {

// A text for people who may not know where things lie: "cannot write model.safetensors: disk full" of "cannot write
// /data/runs/books/model.safetensors: disk full". A path is what stands in quotes and has a slash; what begins with a slash,
// at the start of a word or behind one of "'(=[:<, up to white space, so that of a folder with a space in its name the rest
// stays where it is not quoted; and what begins with `folder`, the run's own, as it was given ("": with nothing).
std::string WithoutFolders(absl::string_view text, absl::string_view folder);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_WITHOUT_FOLDERS_H_
