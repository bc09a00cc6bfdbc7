#ifndef EPS_COMMON_BASE_STATUS_MACROS_H_
#define EPS_COMMON_BASE_STATUS_MACROS_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps {

// Puts what the caller knows in front of a status: "step 41, layer 7: <message>". Keeps the code.
inline absl::Status Annotate(const absl::Status& status, absl::string_view where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace eps

#define EPS_CONCAT_INNER_(a, b) a##b
#define EPS_CONCAT_(a, b) EPS_CONCAT_INNER_(a, b)

// Returns from the enclosing function if `expr` (an absl::Status) is not OK.
#define EPS_RETURN_IF_ERROR(expr)                                                 \
  do {                                                                            \
    if (absl::Status eps_status_ = (expr); !eps_status_.ok()) return eps_status_; \
  } while (false)

// Returns Annotate(status, where) if `expr` is not OK.
#define EPS_RETURN_IF_ERROR_WITH(expr, where)                                                               \
  do {                                                                                                      \
    if (absl::Status eps_status_ = (expr); !eps_status_.ok()) return ::eps::Annotate(eps_status_, (where)); \
  } while (false)

// EPS_ASSIGN_OR_RETURN(auto value, MakeValue()): the value, or returns the error.
#define EPS_ASSIGN_OR_RETURN(lhs, expr) EPS_ASSIGN_OR_RETURN_IMPL_(EPS_CONCAT_(eps_statusor_, __LINE__), lhs, expr)
#define EPS_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                               \
  if (!statusor.ok()) return statusor.status();         \
  lhs = std::move(statusor).value()

// For our own bugs only: bytes from a peer, a file or a user can never trip it.
#define EPS_CHECK(condition)                                                             \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // EPS_COMMON_BASE_STATUS_MACROS_H_
