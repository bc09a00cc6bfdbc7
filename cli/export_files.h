#ifndef EPS_CLI_EXPORT_FILES_H_
#define EPS_CLI_EXPORT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_source.h"
#include "common/formats/model_folder_files.h"
#include "common/model/hf_config.h"

namespace eps::cli {

// What an export has beside its tensors.
struct ExportFiles {
  HfConfigForm config;
  ModelFiles files;           // without config.json
  std::string end_of_answer;  // of a run on conversations, for people: "<|eot_id|> (128009)"; "": not known, or none
  std::vector<std::string> notes;  // what else is otherwise than it was in the source, for people
};

// The files of `source`. Of a run on conversations, with what lets other programs talk to it as it was taught: the
// token that ends a turn is the first eos_token_id of generation_config.json, which is made where there is none,
// eos_token_id of config.json and eos_token of tokenizer_config.json and special_tokens_map.json, where these are
// there; and chat_template.jinja is the run's template, unless the source's own is that. What else stands in these
// files stays as it is written. Of a run that kept no more than "auto", by which the template cannot be told, they stay
// as they are, with a note. Of a source without a config.json, bos and eos in it are the tokenizer's.
//
// Errors: LoadTokenizer's and ReadTokenizerSettings's · INVALID_ARGUMENT naming file and member, or the template
absl::StatusOr<ExportFiles> FilesOfExport(const ModelSource& source);

// That the files are such as other programs, and FilesOfExport, read: none is empty, and those of settings are JSON
// objects. For before a run takes its hours.
// Errors: INVALID_ARGUMENT naming the file
absl::Status CheckExportFiles(const ModelFiles& files);

}  // namespace eps::cli

#endif  // EPS_CLI_EXPORT_FILES_H_
