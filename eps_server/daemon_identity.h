#ifndef EPS_SERVER_DAEMON_IDENTITY_H_
#define EPS_SERVER_DAEMON_IDENTITY_H_

#include <cstdint>
#include <string>

namespace eps::server {

// Which daemon it is that says something.
struct DaemonIdentity {
  uint64_t incarnation = 0;  // of this process: NewIncarnation
  // Another one, for the page, which asks for no password: it tells daemons apart, and opens nothing.
  uint64_t page_incarnation = 0;
  std::string folder;  // as it was given
  std::string run;     // what that is called, for people; AsciiText
};

// Of a daemon that begins, with the folder `out`.
DaemonIdentity NewDaemonIdentity(const std::string& out);

}  // namespace eps::server

#endif  // EPS_SERVER_DAEMON_IDENTITY_H_
