// Precompiled for every tensor-free room: the headers nearly every file pulls in anyway.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#if FMT_VERSION >= 90000 && FMT_VERSION < 100000
// fmt 9 lets every file that prints to a stream compile the whole formatter once more, although its library has it;
// from version 10 on its own header says this. A third of the time of such files.
extern template void fmt::v9::detail::vformat_to<char>(buffer<char>&, string_view,
                                                       basic_format_args<buffer_context<char>>, locale_ref);
#endif
