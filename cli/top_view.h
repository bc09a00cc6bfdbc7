#ifndef EPS_CLI_TOP_VIEW_H_
#define EPS_CLI_TOP_VIEW_H_

#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace eps::cli {

struct TopSize {
  int columns = 80;
  int rows = 24;
};

// What `eps top` shows of a run, plain text, at most size.rows lines of at most size.columns characters: progress, the
// loss curve, memory against limits, checkpoints, and a line per worker, those that are lost last. Workers that do not
// fit are counted in the last line.
std::vector<std::string> TopView(const proto::StatusReply& status, TopSize size);

// "0-3,7"; "-" if there are none. `vnodes` rise.
std::string FormatVnodes(const std::vector<int>& vnodes);

// `points` as `rows` lines of at most `columns` characters, the highest value at the top, which begin with the value of
// the line where it is known: the first and the last. What is not finite is left blank.
std::vector<std::string> PlotLines(const std::vector<double>& points, int rows, int columns);

}  // namespace eps::cli

#endif  // EPS_CLI_TOP_VIEW_H_
