// SPDX-License-Identifier: BSD-2-Clause

// Package sdktest tests package s3rdma with aws-sdk-go-v2 and minio-go. It is a separate module, so that goverbs does
// not require these.
package sdktest
