#ifndef EPS_COMMON_SPEC_DATA_FILE_H_
#define EPS_COMMON_SPEC_DATA_FILE_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/formats/document_index_header.h"
#include "common/formats/document_index_writer.h"
#include "common/spec/check_context.h"
#include "common/spec/checker.h"
#include "common/spec/run_config.h"

namespace eps {

// A data file, and what is known of it beside what the RunSpec says.
struct DataFile {
  std::string path;                          // absolute
  const DataConfig* was = nullptr;           // in the run that is gone on with; then nothing else is looked at
  std::string beginning;                     // "": nothing is known of its content
  std::optional<DocumentIndexHeader> index;  // of a token file

  // Whether it can be read as one long text, and nothing is lost.
  bool may_be_joined() const { return !index.has_value() || index->may_be_joined(); }
  std::string index_path() const { return DocumentIndexPath(path); }
};

// path: as the RunSpec has it, in the field `path_field`, by which a file that is several sources is found again.
// form: of what is in it.
// Errors: in `check`: an index that is damaged, or another file's
DataFile LookAtDataFile(const std::string& path, TokenForm form, absl::string_view path_field,
                        const CheckContext& context, Checker& check);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_DATA_FILE_H_
