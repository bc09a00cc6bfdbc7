#ifndef EPS_CLI_IMPORT_ADAPTER_H_
#define EPS_CLI_IMPORT_ADAPTER_H_

#include <string>

#include "absl/status/status.h"

namespace eps::cli {

// Writes the model in the folder `from` with the adapter in the folder `adapter`, as PEFT has it, beside its weights,
// for runs to begin with (WriteAdaptedFolder), and says on stdout what was written. What lies beside is the model's,
// but for the tokenizer, where the adapter has one of its own.
// Errors: ModelFolder::Open's, AdapterReader::Open's, CheckExportFiles's, WriteAdaptedFolder's · INVALID_ARGUMENT
//         naming --adapter: it is empty; or --from: a checkpoint of a run, or a model that has adapters; then nothing
//         is left at `out`
absl::Status ImportAdapter(const std::string& from, const std::string& adapter, const std::string& out);

}  // namespace eps::cli

#endif  // EPS_CLI_IMPORT_ADAPTER_H_
