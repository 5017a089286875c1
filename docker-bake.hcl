# Written by Beeyard: change presets/ or templates/, then run `make render`.
# Builds of Dockerfile.cuda. A base named run-make-lock-images.invalid/… has no digest in presets/lock.yaml yet.

group "default" {
  targets = ["beellama-v0_4_3-cuda12", "beellama-v0_4_3-cuda13", "beellama-v0_4_3-cpu"]
}

# beellama-v0.4.3
group "cuda12" {
  targets = ["beellama-v0_4_3-cuda12"]
}

# beellama-v0.4.3
group "cuda13" {
  targets = ["beellama-v0_4_3-cuda13"]
}

# beellama-v0.4.3
group "cpu" {
  targets = ["beellama-v0_4_3-cpu"]
}

# auto: one compiler a core, and one a GiB of memory.
variable "JOBS" {
  default = "auto"
}

# Of the files in the layers; two builds from the same pins are then the same.
variable "SOURCE_DATE_EPOCH" {
  default = "0"
}

variable "VERSION" {
  default = "0"
}

target "common" {
  context    = "."
  dockerfile = "Dockerfile.cuda"
  target     = "server"
  args = {
    JOBS              = JOBS
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
    VERSION           = VERSION
    CREATED           = formatdate("YYYY-MM-DD'T'hh:mm:ssZ", timeadd("1970-01-01T00:00:00Z", "${SOURCE_DATE_EPOCH}s"))
  }
}

target "beellama-07ac3ce-cuda12" {
  inherits = ["common"]
  tags     = ["beeyard:beellama-07ac3ce-cuda12"]
  args = {
    BUILD_BASE         = "run-make-lock-images.invalid/nvidia/cuda:12.8.1-devel-ubuntu24.04"
    SERVER_BASE        = "run-make-lock-images.invalid/ubuntu:24.04"
    ACCELERATOR        = "cuda"
    CUDA_ARCHITECTURES = "86;89"
    ENGINE_NAME        = "beellama-07ac3ce"
    ENGINE_DIALECT     = "guide"
    ENGINE_REPOSITORY  = "https://github.com/Anbeeld/beellama.cpp"
    ENGINE_COMMIT      = "07ac3cec6877a14530f89d1561c9617eafc3bec0"
  }
}

target "beellama-07ac3ce-cuda13" {
  inherits = ["common"]
  tags     = ["beeyard:beellama-07ac3ce-cuda13"]
  args = {
    BUILD_BASE         = "run-make-lock-images.invalid/nvidia/cuda:13.0.1-devel-ubuntu24.04"
    SERVER_BASE        = "run-make-lock-images.invalid/ubuntu:24.04"
    ACCELERATOR        = "cuda"
    CUDA_ARCHITECTURES = "86;89;120"
    ENGINE_NAME        = "beellama-07ac3ce"
    ENGINE_DIALECT     = "guide"
    ENGINE_REPOSITORY  = "https://github.com/Anbeeld/beellama.cpp"
    ENGINE_COMMIT      = "07ac3cec6877a14530f89d1561c9617eafc3bec0"
  }
}

target "beellama-07ac3ce-cpu" {
  inherits = ["common"]
  tags     = ["beeyard:beellama-07ac3ce-cpu"]
  args = {
    BUILD_BASE         = "run-make-lock-images.invalid/ubuntu:24.04"
    SERVER_BASE        = "run-make-lock-images.invalid/ubuntu:24.04"
    ACCELERATOR        = "cpu"
    CUDA_ARCHITECTURES = ""
    ENGINE_NAME        = "beellama-07ac3ce"
    ENGINE_DIALECT     = "guide"
    ENGINE_REPOSITORY  = "https://github.com/Anbeeld/beellama.cpp"
    ENGINE_COMMIT      = "07ac3cec6877a14530f89d1561c9617eafc3bec0"
  }
}

target "beellama-v0_4_3-cuda12" {
  inherits = ["common"]
  tags     = ["beeyard:beellama-v0.4.3-cuda12"]
  args = {
    BUILD_BASE         = "run-make-lock-images.invalid/nvidia/cuda:12.8.1-devel-ubuntu24.04"
    SERVER_BASE        = "run-make-lock-images.invalid/ubuntu:24.04"
    ACCELERATOR        = "cuda"
    CUDA_ARCHITECTURES = "86;89"
    ENGINE_NAME        = "beellama-v0.4.3"
    ENGINE_DIALECT     = "bee4"
    ENGINE_REPOSITORY  = "https://github.com/Anbeeld/beellama.cpp"
    ENGINE_COMMIT      = "ba27edad2a84ff045a556df06661e821285c2fab"
  }
}

target "beellama-v0_4_3-cuda13" {
  inherits = ["common"]
  tags     = ["beeyard:beellama-v0.4.3-cuda13"]
  args = {
    BUILD_BASE         = "run-make-lock-images.invalid/nvidia/cuda:13.0.1-devel-ubuntu24.04"
    SERVER_BASE        = "run-make-lock-images.invalid/ubuntu:24.04"
    ACCELERATOR        = "cuda"
    CUDA_ARCHITECTURES = "86;89;120"
    ENGINE_NAME        = "beellama-v0.4.3"
    ENGINE_DIALECT     = "bee4"
    ENGINE_REPOSITORY  = "https://github.com/Anbeeld/beellama.cpp"
    ENGINE_COMMIT      = "ba27edad2a84ff045a556df06661e821285c2fab"
  }
}

target "beellama-v0_4_3-cpu" {
  inherits = ["common"]
  tags     = ["beeyard:beellama-v0.4.3-cpu"]
  args = {
    BUILD_BASE         = "run-make-lock-images.invalid/ubuntu:24.04"
    SERVER_BASE        = "run-make-lock-images.invalid/ubuntu:24.04"
    ACCELERATOR        = "cpu"
    CUDA_ARCHITECTURES = ""
    ENGINE_NAME        = "beellama-v0.4.3"
    ENGINE_DIALECT     = "bee4"
    ENGINE_REPOSITORY  = "https://github.com/Anbeeld/beellama.cpp"
    ENGINE_COMMIT      = "ba27edad2a84ff045a556df06661e821285c2fab"
  }
}
