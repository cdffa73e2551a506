#include "trireme/base/trace_text.h"

#include <nlohmann/json.hpp>

namespace trireme {

std::string TraceText::quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trireme
