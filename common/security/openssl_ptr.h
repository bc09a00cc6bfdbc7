#ifndef EPS_COMMON_SECURITY_OPENSSL_PTR_H_
#define EPS_COMMON_SECURITY_OPENSSL_PTR_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace eps {

// OpenSSL's objects, let go when they go out of scope.
template <typename T, void (*kFree)(T*)>
struct OpensslFree {
  void operator()(T* object) const { kFree(object); }
};
struct BioFree {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
};

using BioPtr = std::unique_ptr<BIO, BioFree>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY, EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, OpensslFree<X509, X509_free>>;

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_OPENSSL_PTR_H_
