#ifndef EPS_SERVER_STATUS_PAGE_STATUS_PAGE_H_
#define EPS_SERVER_STATUS_PAGE_STATUS_PAGE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps::server {

// A file of the page that shows a run to people in their browser.
struct StatusPageFile {
  absl::string_view path;          // that it is asked for by: "/", "/page.js"
  absl::string_view content_type;  // of HTTP
  absl::string_view text;
};

// All of this folder's: index.html, and what it loads. They show what /status.json says, which is asked for again and again,
// and need nothing from elsewhere.
absl::Span<const StatusPageFile> StatusPageFiles();

}  // namespace eps::server

#endif  // EPS_SERVER_STATUS_PAGE_STATUS_PAGE_H_
