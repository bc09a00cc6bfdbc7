#ifndef EPS_COMMON_FORMATS_MODEL_FOLDER_FILES_H_
#define EPS_COMMON_FORMATS_MODEL_FOLDER_FILES_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

// What a model's folder has beside its tensors, by name, with its bytes: config.json, the tokenizer, what ends a text.
using ModelFiles = std::map<std::string, std::string>;

// The file's names in ModelFiles.
inline constexpr char kGenerationConfigFile[] = "generation_config.json";
inline constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
inline constexpr char kSpecialTokensFile[] = "special_tokens_map.json";
inline constexpr char kChatTemplateFile[] = "chat_template.jinja";
inline constexpr char kChatTemplateJsonFile[] = "chat_template.json";  // an earlier form of it

// Those that the folder has, of those that transformers, vLLM and llama.cpp look for. One that is not there is none.
// Memory: some MB: a tokenizer
// Errors: the system's, naming the file · INVALID_ARGUMENT a file is larger than any of its kind
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder);
// The same for who does without what cannot be read: its error is added to `left_out`, by its name.
ModelFiles ReadModelFiles(const std::string& folder, std::map<std::string, absl::Status>& left_out);

// Of the names that ReadModelFiles looks for, those of a tokenizer: the vocabulary, its settings, a chat template.
absl::Span<const char* const> TokenizerFileNames();
// Of these, those of a vocabulary: a tokenizer has one of them, or the same in several forms.
absl::Span<const char* const> VocabularyFileNames();
// Whether there is a vocabulary.
bool HasTokenizer(const ModelFiles& files);

// Writes them into the folder, which is there. Errors: the system's, naming the file
absl::Status WriteModelFiles(const ModelFiles& files, const std::string& folder);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_MODEL_FOLDER_FILES_H_
