# What training jobs may do: read the secrets below secret/training, nothing else.
# `secret` is a KV version 2 mount; for a version 1 mount one rule is enough: path "kv/training/*".

path "secret/data/training/*" {
  capabilities = ["read"]
}

# plan looks here before any GPU is taken: whether a secret exists, and which keys it has. Neither returns a value.
path "secret/metadata/training/*" {
  capabilities = ["read"]
}

path "secret/subkeys/training/*" {
  capabilities = ["read"]
}
