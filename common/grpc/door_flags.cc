#include "common/grpc/door_flags.h"

#include <string>

#include "CLI/CLI.hpp"

namespace eps {
namespace {

constexpr char kGroup[] = "Doors (`eps keys` makes the files; docs/security.md)";

CLI::Option* AddFile(CLI::App& app, const char* flag, std::string& file, const char* help) {
  return app.add_option(flag, file, help)->type_name("FILE")->group(kGroup);
}

}  // namespace

void AddServerDoorFlags(CLI::App& app, ServerDoors& doors) {
  auto* certificate = AddFile(app, "--tls-cert", doors.certificate_file, "TLS: the daemon's certificate, PEM");
  auto* key = AddFile(app, "--tls-key", doors.key_file, "Its private key, PEM; mode 0600")->needs(certificate);
  certificate->needs(key);
  AddFile(app, "--tls-client-ca", doors.client_ca_file, "Only peers with a certificate that this CA signed are let in")
      ->needs(certificate);
  AddFile(
      app, "--token-file", doors.token_file,
      "Only calls that carry a token of this file are answered: a line each, TOKEN, or TOKEN with its role, viewer, "
      "worker or operator; mode 0600")
      ->take_last();  // of a unit, which gives one, and of its FLAGS, which may give another
}

void AddClientDoorFlags(CLI::App& app, ClientDoors& doors) {
  auto* ca = AddFile(app, "--tls-ca", doors.ca_file, "TLS: the daemon's certificate must be signed by this CA, PEM");
  auto* certificate =
      AddFile(app, "--tls-cert", doors.certificate_file, "Certificate to show to the daemon, PEM")->needs(ca);
  auto* key = AddFile(app, "--tls-key", doors.key_file, "Its private key, PEM; mode 0600")->needs(certificate);
  certificate->needs(key);
  AddFile(app, "--token-file", doors.token_file, "Token to show to the daemon; mode 0600")->take_last();
}

}  // namespace eps
