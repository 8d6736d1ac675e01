// Package cm has the tests of package rdma/cm that run in guests, on a real kernel with Soft-RoCE.
package cm
