from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import send_receipt


@csrf_exempt  # for curl
@require_POST
@transaction.atomic
def create_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(product=request.POST["product"])
    result = send_receipt.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "task": result.id})


def read_task(request: HttpRequest, task_id: str) -> JsonResponse:
    result = send_receipt.get_result(task_id)
    return JsonResponse({"status": result.status, "receipt": result.return_value if result.is_finished else None})


urlpatterns = [path("orders/", create_order), path("tasks/<str:task_id>/", read_task)]
