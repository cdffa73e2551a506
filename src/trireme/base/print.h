// base/print.h -- fmt::print to a stream.
//
// In place of <fmt/ostream.h>: with version 9 every file that prints to a stream compiles the whole formatter once
// more, although fmt's library has it, which is a third of the file's time. From version 10 on fmt's own header says
// so.
#pragma once

#include <fmt/ostream.h>

#if FMT_VERSION >= 90000 && FMT_VERSION < 100000
extern template void fmt::v9::detail::vformat_to<char>(buffer<char>&, string_view,
                                                       basic_format_args<buffer_context<char>>, locale_ref);
#endif
