// formats/xml_reader.h -- elements and attributes of a small XML file; text between elements is skipped.
//
// What topology files need: no namespaces, no document types, the five named entities and numbered ones.
// Depends on: format_error.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::formats {

struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<XmlElement> children;

  /// Empty where it has none.
  std::string_view attribute(std::string_view name) const;
};

/// The root. Throws FormatError, which names `name` and the byte.
XmlElement read_xml(std::string_view text, const std::string& name);

}  // namespace trireme::formats
