#include "cli/command_name.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace eps::cli {
namespace {

constexpr size_t kMostMistakes = 2;  // with more, what was meant is anybody's guess

// How many letters have to be put in, taken out, replaced, or changed with their neighbour, each letter at most once.
size_t CountMistakes(absl::string_view word, absl::string_view name) {
  // mistakes[i][j]: of the first i letters of the word against the first j of the name.
  std::vector<std::vector<size_t>> mistakes(word.size() + 1, std::vector<size_t>(name.size() + 1));
  for (size_t i = 0; i <= word.size(); ++i) {
    for (size_t j = 0; j <= name.size(); ++j) {
      size_t& least = mistakes[i][j];
      if (i == 0 || j == 0) {
        least = i + j;
        continue;
      }
      least = std::min({mistakes[i - 1][j] + 1, mistakes[i][j - 1] + 1,
                        mistakes[i - 1][j - 1] + (word[i - 1] == name[j - 1] ? 0 : 1)});
      const bool is_swapped = i > 1 && j > 1 && word[i - 1] == name[j - 2] && word[i - 2] == name[j - 1];
      if (is_swapped) least = std::min(least, mistakes[i - 2][j - 2] + 1);
    }
  }
  return mistakes[word.size()][name.size()];
}

std::vector<std::string> NearestNames(const CLI::App& app, const std::string& word) {
  std::vector<std::string> nearest;
  size_t least = std::min(kMostMistakes, word.size() / 2);  // half of the word has to be right
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const size_t mistakes = CountMistakes(word, command->get_name());
    if (mistakes > least) continue;
    if (mistakes < least) nearest.clear();
    least = mistakes;
    nearest.push_back(command->get_name());
  }
  return nearest;
}

}  // namespace

std::string WrongNameText(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return "";
  const std::vector<std::string> words = app.remaining();
  // What stands behind an option that is not known may be its value: that option is the mistake.
  if (words.empty() || words.front().empty() || absl::StartsWith(words.front(), "-")) return "";
  const std::string& word = words.front();
  const std::string names = absl::StrJoin(NearestNames(app, word), " or ");
  return absl::StrCat("\"", word, "\" is no command; ", names.empty() ? "" : absl::StrCat("do you mean ", names, "? "),
                      "`eps --help` lists them");
}

}  // namespace eps::cli
