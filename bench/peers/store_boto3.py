"""boto3's upload_file and download_file as its documentation shows them, from ten threads.

python bench/peers/store_boto3.py up|down FOLDER PREFIX
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3

direction, folder, prefix = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
client = boto3.client("s3")
with ThreadPoolExecutor(10) as pool:
    if direction == "up":
        paths = list(folder.iterdir())
        list(pool.map(lambda path: client.upload_file(str(path), "artifacts", f"{prefix}/{path.name}"), paths))
    else:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="artifacts", Prefix=f"{prefix}/")
        keys = [item["Key"] for page in pages for item in page["Contents"]]
        folder.mkdir(parents=True)
        list(pool.map(lambda key: client.download_file("artifacts", key, str(folder / Path(key).name)), keys))
