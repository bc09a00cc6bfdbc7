#include "common/spec/data_file.h"

#include <utility>

#include "absl/status/statusor.h"

namespace eps {
namespace {

// The file `path` of the run that is gone on with; null where there is none.
const DataConfig* FindFormer(const RunConfig* resumed, const std::string& path) {
  if (resumed == nullptr) return nullptr;
  if (resumed->sources.empty()) return resumed->data.path == path ? &resumed->data : nullptr;
  for (const DataSource& source : resumed->sources) {
    if (source.data.path == path) return &source.data;
  }
  return nullptr;
}

}  // namespace

DataFile LookAtDataFile(const std::string& path, TokenForm form, absl::string_view path_field,
                        const CheckContext& context, Checker& check) {
  DataFile file{.path = context.absolute_path(path)};
  file.was = FindFormer(context.resumed, file.path);
  if (file.was != nullptr) return file;
  if (form != TokenForm::kTokenFile) {
    if (context.read_beginning != nullptr) file.beginning = context.read_beginning(file.path);
    return file;
  }
  if (context.read_index == nullptr) return file;
  absl::StatusOr<std::optional<DocumentIndexHeader>> index = context.read_index(file.path);
  if (!index.ok()) check.Fail(path_field, index.status().message());
  if (index.ok()) file.index = *std::move(index);
  return file;
}

}  // namespace eps
