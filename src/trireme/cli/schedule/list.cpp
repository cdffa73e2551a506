// trireme schedule list: the kinds there are.
#include <fmt/format.h>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/options.h"

namespace trireme::cli {

void add_schedule_list(Command& schedule, Context& context) {
  Command& list = schedule.add_subcommand("list", "Print every kind of schedule with what it is and who published it");
  list.callback([&context] {
    context.run = [&context] {
      TextTable table({{"kind"}, {"chunks", TextTable::Align::kRight}, {"what it is"}, {"from"}});
      for (const schedule::Kind& kind : schedule::kinds())
        table.add({std::string(kind.name), fmt::format("{}", kind.default_chunks), std::string(kind.what),
                   std::string(kind.from)});
      table.add({"file:PATH", "", "one's own, as `trireme schedule show` prints them", ""});
      context.out << table.text();
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
