#ifndef EPS_COMMON_BASE_PROGRAM_OUTPUT_H_
#define EPS_COMMON_BASE_PROGRAM_OUTPUT_H_

namespace eps {

// Opens each standard stream that the program was started without (`>&-`), so that its use fails: else the next file that
// is opened would get its number, and what is printed would go there. Before anything else is opened.
void HoldStandardStreams();

// Whether what was printed is out, or nobody is there to read it any more (`| head`). Says on standard error why not:
//   eps: cannot write all of the output: No space left on device
bool FlushOutput(const char* program);

}  // namespace eps

#endif  // EPS_COMMON_BASE_PROGRAM_OUTPUT_H_
