#ifndef EPS_CLI_EXPORT_ADAPTER_H_
#define EPS_CLI_EXPORT_ADAPTER_H_

#include <string>

#include "absl/status/status.h"

namespace eps::cli {

// Writes the adapters of the checkpoint that `checkpoint` means as a folder that PEFT loads (WriteAdapterFolder), with
// the tokenizer of its run, and says on stdout what was written, on stderr what is missing. dtype: F32, BF16 or F16.
// base: what others call the model that the adapters go on top of; "": the run's model.from.
// Errors: FindFolderToExport's, VerifyCheckpointFolder's, FindModelSource's, FilesOfExport's, PartsOfAdapter's,
//         WriteAdapterFolder's · INVALID_ARGUMENT naming --adapter: no checkpoint of a run, one without adapters, or one
//         that has more layers than what it began with; then nothing is left at `out`
absl::Status ExportAdapter(const std::string& checkpoint, const std::string& out, const std::string& dtype,
                           const std::string& base);

}  // namespace eps::cli

#endif  // EPS_CLI_EXPORT_ADAPTER_H_
