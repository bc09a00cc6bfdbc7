#ifndef EPS_COMMON_CHECKPOINT_MARK_IDS_H_
#define EPS_COMMON_CHECKPOINT_MARK_IDS_H_

#include "common/formats/model_folder_files.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// Of a model whose tokenizer `was` gives way to `now`: takes the ids of what begins, ends and fills texts out of `files`
// where one of them is another token now, or none. config.json says null of them, for which an export takes what the
// tokenizer itself says; generation_config.json goes. Files that cannot be read stay as they are.
void ForgetMarksOfOther(const Tokenizer& was, const Tokenizer& now, ModelFiles& files);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_MARK_IDS_H_
