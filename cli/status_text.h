#ifndef EPS_CLI_STATUS_TEXT_H_
#define EPS_CLI_STATUS_TEXT_H_

#include <string>

#include "proto/control.pb.h"

namespace eps::cli {

// What `eps status` prints for people: a line for each thing, and one for each worker. Nothing in it steers a terminal.
//   state                training
//   step                 105 of 300, eta 2:05
//   last step            0.250 s, ended 0.125 s ago; skipped 0, waited too long 0
std::string StatusText(const proto::StatusReply& status);

}  // namespace eps::cli

#endif  // EPS_CLI_STATUS_TEXT_H_
